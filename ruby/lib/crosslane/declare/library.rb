# frozen_string_literal: true

module Crosslane
  # The functions that a file declares.
  class Library
    Pending = Struct.new(:kind, :signature, :options, :location)
    private_constant :Pending

    class << self
      # @return [Library] the library that is being loaded
      # @raise [DeclarationError] outside of a load
      def current
        @current || raise(DeclarationError, "udf declares functions in a file that is loaded: " \
                                            "crosslane_load('file.rb'), or db.load(\"file.rb\")")
      end

      # Prevents that a library loads itself: each of its processes would start another one, without
      # end.
      #
      # @raise [DeclarationError] if a file is being loaded; the message names the place of the call
      def refuse_while_loading
        return unless @current

        place = caller_locations.find { |location| !location.path.start_with?(Errors::OURS) }
        raise DeclarationError, "#{place.path}:#{place.lineno}: this file is being loaded as a library of functions; " \
                                "put what opens a database under `if $PROGRAM_NAME == __FILE__`"
      end

      # Runs a file and collects its declarations, in order.
      #
      # @param path [String]
      # @return [Array(Array<Declaration>, Hash)] the functions, and a hash of the content
      #   of each file that was read: this file, and the files of its folder that it required
      # @raise [DeclarationError] if it declares nothing, or a declaration is invalid
      def read(path)
        @current = new(path)
        watch_methods
        watch_files
        Kernel.load(path)
        [@current.finish, @current.hashes]
      ensure
        @current = nil
      end

      private

      # A `def` at the top level defines a method of Object.
      def watch_methods
        return if @watching

        @watching = true
        hook = Module.new do
          def method_added(name)
            super
            Library.defined(name) if equal?(Object)
          end
        end
        Object.singleton_class.prepend(hook)
        Object.include(DSL)
      end

      # Ruby calls this method before it reads a file.
      def watch_files
        return if @watching_files

        @watching_files = true
        hook = Module.new do
          def load_iseq(path)
            Library.reading(path)
            super if defined?(super)
          end
        end
        RubyVM::InstructionSequence.singleton_class.prepend(hook)
      end

      public

      # @api private
      def defined(name) = @current&.defined(name)

      # @api private
      def reading(path) = @current&.reading(path)
    end

    def initialize(path)
      @path = path
      @declarations = []
      @pending = nil
      @folder = "#{File.dirname(File.realpath(path))}/"
      @files = {}
    end

    # @api private
    def reading(path)
      real = File.realpath(path)
      @files[real] = File.binread(real) if real.start_with?(@folder)
    rescue SystemCallError
      # Ruby's own error is clearer.
    end

    # @api private
    def hashes
      # Ruby reads the files after this library has read them. A change in between would go
      # unnoticed.
      changed, = @files.find { |path, content| File.binread(path) != content }
      raise DeclarationError, "#{changed}: has changed while it was loaded" if changed

      Native.hashes(@files.to_a)
    end

    # @api private
    def declare(kind, signature, method, options, block, location)
      forgotten
      if block || method
        callable = method ? called(signature, method, block, location) : block
        add(kind.new(signature, callable, **options))
      else
        @pending = Pending.new(kind, signature, options, location)
        nil
      end
    end

    # @api private
    def declare_states(signature, states, options, block, location)
      forgotten
      unless states.is_a?(Class) ? !block : block && !states
        place = "#{location.path}:#{location.lineno}"
        raise DeclarationError, "#{place}: udaf #{signature.inspect} takes a class or a block"
      end

      add(Aggregate.new(signature, states || block, **options))
    end

    # @api private
    def defined(name)
      pending = @pending
      return unless pending

      @pending = nil
      add(pending.kind.new(pending.signature, TOPLEVEL_BINDING.receiver.method(name), **pending.options))
    end

    # @api private
    def finish
      forgotten
      return @declarations unless @declarations.empty?

      raise DeclarationError, "#{@path}: declares no function; " \
                              "write udf \"double(x BIGINT) -> BIGINT\" do |x| x * 2 end"
    end

    private

    # The method with this name, or the class.
    def called(signature, method, block, location)
      wrong = "#{location.path}:#{location.lineno}: #{signature.inspect} takes a block, the name of a method or a class"
      raise DeclarationError, "#{wrong}, not two of them" if block
      return method if method.is_a?(Class)
      raise DeclarationError, "#{wrong}, not #{method.inspect}" unless method.is_a?(Symbol) || method.is_a?(String)

      TOPLEVEL_BINDING.receiver.method(method)
    end

    def forgotten
      return unless @pending

      location = @pending.location
      raise DeclarationError, "#{location.path}:#{location.lineno}: udf #{@pending.signature.inspect} has no block, " \
                              "and no def follows"
    end

    def add(declaration)
      @declarations << declaration
      declaration
    end
  end
end
