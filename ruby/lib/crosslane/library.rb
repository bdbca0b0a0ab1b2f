# frozen_string_literal: true

module Crosslane
  # The functions of a file.
  class Library
    Pending = Struct.new(:signature, :options, :location)
    private_constant :Pending

    class << self
      # @return [Library] the one that is being loaded
      # @raise [DeclarationError] outside of a load
      def current
        @current || raise(DeclarationError, "udf declares functions in a file that is loaded: " \
                                            "crosslane_load('file.rb'), or db.load(\"file.rb\")")
      end

      # Runs a file and collects what it declares, in order.
      #
      # @param path [String]
      # @return [Array<Declaration>]
      # @raise [DeclarationError] if it declares nothing, a name twice, or something that cannot work
      def load(path)
        @current = new(path)
        watch_methods
        Kernel.load(path)
        @current.finish
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

      public

      # @api private
      def defined(name) = @current&.defined(name)
    end

    def initialize(path)
      @path = path
      @declarations = {}
      @pending = nil
    end

    # @api private
    def declare(signature, method, options, block, location)
      forgotten
      if block || method
        callable = block || TOPLEVEL_BINDING.receiver.method(method)
        add(Declaration.new(signature, callable, **options))
      else
        @pending = Pending.new(signature, options, location)
        nil
      end
    end

    # @api private
    def defined(name)
      pending = @pending
      return unless pending

      @pending = nil
      add(Declaration.new(pending.signature, TOPLEVEL_BINDING.receiver.method(name), **pending.options))
    end

    # @api private
    def finish
      forgotten
      return @declarations.values unless @declarations.empty?

      raise DeclarationError, "#{@path}: declares no function; " \
                              "write udf \"double(x BIGINT) -> BIGINT\" do |x| x * 2 end"
    end

    private

    def forgotten
      return unless @pending

      location = @pending.location
      raise DeclarationError, "#{location.path}:#{location.lineno}: udf #{@pending.signature.inspect} has no block, " \
                              "and no def follows"
    end

    def add(declaration)
      other = @declarations[declaration.name.downcase]
      raise declaration.error("the name is taken by line #{other.line} of #{other.file}") if other

      @declarations[declaration.name.downcase] = declaration
    end
  end
end
