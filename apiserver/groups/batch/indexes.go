package batch

import (
	"fmt"
	"strconv"
	"strings"
)

// interval is a range of completion indexes, both ends included.
type interval struct{ first, last int32 }

// parseIndexes reads a list of indexes below completions, such as "1,3-5,7". It stops at the first
// mistake and returns no intervals then.
func parseIndexes(text string, completions int32) ([]interval, error) {
	if text == "" {
		return nil, nil
	}
	var all []interval
	for part := range strings.SplitSeq(text, ",") {
		in, err := parseInterval(part, completions)
		if err != nil {
			return nil, err
		}
		if n := len(all); n > 0 && all[n-1].last >= in.first {
			return nil, fmt.Errorf("non-increasing order, previous: %d, current: %d", all[n-1].last, in.first)
		}
		all = append(all, in)
	}
	return all, nil
}

func parseInterval(text string, completions int32) (interval, error) {
	ends := strings.Split(text, "-")
	if len(ends) > 2 {
		return interval{},
			fmt.Errorf(
				"the fragment %q violates the requirement that an index interval can have at most two parts separated by '-'", text)
	}
	first, err := parseIndex(ends[0], completions)
	if err != nil {
		return interval{}, err
	}
	if len(ends) == 1 {
		return interval{first, first}, nil
	}
	last, err := parseIndex(ends[1], completions)
	if err != nil {
		return interval{}, err
	}
	if first >= last {
		return interval{}, fmt.Errorf("non-increasing order, previous: %d, current: %d", first, last)
	}
	return interval{first, last}, nil
}

func parseIndex(text string, completions int32) (int32, error) {
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("cannot convert string to integer for index: %q", text)
	}
	if n >= int(completions) {
		return 0, fmt.Errorf("too large index: %q", text)
	}
	return int32(n), nil
}

// countIndexes counts the indexes in intervals that do not overlap.
func countIndexes(all []interval) int32 {
	n := int32(0)
	for _, in := range all {
		n += in.last - in.first + 1
	}
	return n
}

// overlap finds an index that is in both lists. Parts that cannot be read are left out: they are
// reported where the format of the list is checked.
func overlap(a, b string, completions int32) (int32, bool) {
	x, y := readable(a, completions), readable(b, completions)
	for len(x) > 0 && len(y) > 0 {
		switch {
		case x[0].first <= y[0].last && y[0].first <= x[0].last:
			return max(x[0].first, y[0].first), true
		case x[0].first <= y[0].first:
			x = x[1:]
		default:
			y = y[1:]
		}
	}
	return 0, false
}

func readable(text string, completions int32) []interval {
	var all []interval
	for part := range strings.SplitSeq(text, ",") {
		if in, err := parseInterval(part, completions); err == nil {
			all = append(all, in)
		}
	}
	return all
}
