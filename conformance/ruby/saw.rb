# frozen_string_literal: true

def saw(x)
  case x
  when String then "#{x.encoding} #{x.dump}"
  when Array then "[#{x.map { |value| saw(value) }.join(", ")}]"
  when Hash then "Hash {#{x.map { |pair| pair.map { |value| saw(value) }.join(" => ") }.join(", ")}}"
  when Struct
    fields = x.each_pair.map { |name, value| "#{name}: #{saw(value)}" }
    "#{x.class.name || "Struct"} {#{fields.join(", ")}}"
  else "#{x.class} #{x.inspect}"
  end
end
