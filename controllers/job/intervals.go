package job

import (
	"slices"
	"strconv"
	"strings"
)

// indexes is a set of completion indexes as sorted intervals that neither touch nor overlap. The
// status holds it as text. A job may have 100,000 indexes.
type indexes []interval

type interval struct{ first, last int }

// parseIndexes reads text like "1,3-5". Indexes from limit on, and unreadable parts, are left out.
func parseIndexes(text string, limit int) indexes {
	var out indexes
	for part := range strings.SplitSeq(text, ",") {
		from, to, ranged := strings.Cut(part, "-")
		first, err := strconv.Atoi(from)
		if err != nil || first < 0 || first >= limit {
			continue
		}
		last := first
		if ranged {
			if last, err = strconv.Atoi(to); err != nil || last < first {
				continue
			}
		}
		out = append(out, interval{first, min(last, limit-1)})
	}
	return out.sorted()
}

// sorted sorts intervals and joins those that touch.
func (x indexes) sorted() indexes {
	slices.SortFunc(x, func(a, b interval) int { return a.first - b.first })
	var out indexes
	for _, i := range x {
		if n := len(out); n > 0 && i.first <= out[n-1].last+1 {
			out[n-1].last = max(out[n-1].last, i.last)
			continue
		}
		out = append(out, i)
	}
	return out
}

func (x indexes) with(more indexes) indexes { return slices.Concat(x, more).sorted() }

func (x indexes) withOne(is ...int) indexes {
	out := slices.Clone(x)
	for _, i := range is {
		out = append(out, interval{i, i})
	}
	return out.sorted()
}

func (x indexes) has(i int) bool {
	_, found := slices.BinarySearchFunc(x, i, func(v interval, i int) int {
		switch {
		case v.last < i:
			return -1
		case v.first > i:
			return 1
		}
		return 0
	})
	return found
}

func (x indexes) count() int {
	n := 0
	for _, i := range x {
		n += i.last - i.first + 1
	}
	return n
}

// common is how many indexes are in both.
func (x indexes) common(y indexes) int {
	n, i, j := 0, 0, 0
	for i < len(x) && j < len(y) {
		n += max(0, min(x[i].last, y[j].last)-max(x[i].first, y[j].first)+1)
		if x[i].last < y[j].last {
			i++
		} else {
			j++
		}
	}
	return n
}

// missing returns the first n indexes below limit that are not in the set.
func (x indexes) missing(n, limit int) []int {
	var out []int
	next := 0
	for _, i := range slices.Concat(x, indexes{{limit, limit}}) {
		for ; next < min(i.first, limit) && len(out) < n; next++ {
			out = append(out, next)
		}
		next = max(next, i.last+1)
	}
	return out
}

func (x indexes) String() string {
	var b strings.Builder
	for _, i := range x {
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(i.first))
		if i.last > i.first {
			separator := byte('-')
			if i.last == i.first+1 {
				separator = ','
			}
			b.WriteByte(separator)
			b.WriteString(strconv.Itoa(i.last))
		}
	}
	return b.String()
}
