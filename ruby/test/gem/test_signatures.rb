# frozen_string_literal: true

require_relative "../helper"
require "crosslane/v8"
require "json"
require "open3"
require "yaml"

# The gem's RBS types (sig/).
class TestSignatures < CrosslaneTest
  FOLDER = File.expand_path("../../sig", __dir__)
  # Classes and modules that programs do not use.
  INTERNAL = %w[
    Crosslane::Errors Crosslane::Host Crosslane::HostAggregate Crosslane::HostTable Crosslane::Library
    Crosslane::Native Crosslane::Runner Crosslane::ScanEnded Crosslane::Threads Crosslane::V8::Native
    Crosslane::WeakSet
  ].freeze

  # Reads the signatures, and prints the methods of each class and of its objects. It runs in a
  # process of its own: RBS's parser does not support that the collector moves objects, and other
  # tests make the collector do so.
  READER = <<~'RUBY'
    require "json"
    require "rbs"
    loader = RBS::EnvironmentLoader.new
    loader.add(path: Pathname(ARGV.first))
    names = lambda do |member|
      case member
      when RBS::AST::Members::AttrAccessor then [member.name, "#{member.name}="]
      when RBS::AST::Members::MethodDefinition, RBS::AST::Members::AttrReader then [member.name]
      else []
      end
    end
    classes = RBS::Environment.from_loader(loader).resolve_type_names.class_decls
    declared = classes.select { |name, _| name.to_s.match?(/\A::Crosslane\b/) }.map do |name, entry|
      members = entry.decls.flat_map { |context| context.decl.members }.select { |member| member.respond_to?(:kind) }
      own, instances = members.partition { |member| member.kind == :singleton }.map { |some| some.flat_map(&names) }
      [name.to_s.delete_prefix("::"), { own: own, instances: instances }]
    end
    puts declared.to_h.to_json
  RUBY

  def signatures
    output, status = Open3.capture2(RbConfig.ruby, "-e", READER, FOLDER)
    assert_predicate status, :success?
    JSON.parse(output).transform_values { |kinds| kinds.transform_values { |names| names.map(&:to_sym) } }
  end

  # The modules that programs use, from this one on.
  def modules(from)
    found = from.constants(false).map { |name| from.const_get(name) }.grep(Module)
    found = found.reject { |type| INTERNAL.include?(Module.instance_method(:name).bind_call(type)) }
    [from, *found.flat_map { |type| modules(type) }]
  end

  # A module's own methods, without those that a comment marks as private.
  def methods_of(type)
    type.public_instance_methods(false).reject do |name|
      file, line = type.instance_method(name).source_location
      next unless file&.end_with?(".rb")

      comment = File.readlines(file).first(line - 1).reverse.take_while { |text| text.match?(/\A\s*#/) }
      comment.join.include?("@api private")
    end
  end

  def test_the_signatures_are_valid
    command = [RbConfig.ruby, Gem.bin_path("rbs", "rbs")]
    manifest = YAML.load_file(File.join(FOLDER, "manifest.yaml"))
    manifest["dependencies"].each { |library| command += ["-r", library["name"]] }
    output, status = Open3.capture2e(*command, "-I", FOLDER, "validate", "--silent")
    assert_predicate status, :success?, output
  end

  def test_every_method_has_a_signature_and_every_signature_a_method
    types = modules(Crosslane)
    assert_includes types, Crosslane::V8::Pool
    declared = signatures
    assert_equal types.map(&:name).sort, declared.keys.sort
    types.each do |type|
      own, instances = declared[type.name].values_at("own", "instances")
      assert_equal [], methods_of(type) - instances, "methods of #{type} without a signature"
      assert_equal [], methods_of(type.singleton_class) - own - %i[[] inspect keyword_init? members],
                   "methods of #{type} itself without a signature"
      missing = instances.reject { |name| type.method_defined?(name) || type.private_method_defined?(name) }
      assert_equal [], missing, "signatures of methods that #{type} does not have"
      assert_equal [], own.reject { |name| type.respond_to?(name) }, "the same, of #{type} itself"
    end
  end
end
