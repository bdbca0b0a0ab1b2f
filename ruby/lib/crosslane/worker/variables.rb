# frozen_string_literal: true

module Crosslane
  # ENV tells the recorder of the variables that are read by their names. What goes through all
  # variables reads none by its name.
  module NotedVariables
    %i[[] fetch key? include? has_key? member? values_at slice assoc delete].each do |method|
      define_method(method) do |*names, &block|
        (method == :fetch ? names.first(1) : names).grep(String) do |name|
          Native.note_variable(name.dup.force_encoding("UTF-8").scrub)
        end
        super(*names, &block)
      end
    end
  end
end
