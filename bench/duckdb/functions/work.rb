# frozen_string_literal: true

# About 20 us of arithmetic, for guests and host lanes alike.
def work(number)
  total = number
  i = 0
  while i < 400
    total = (total * 31 + i) & 0xFFFFFF
    i += 1
  end
  total
end
