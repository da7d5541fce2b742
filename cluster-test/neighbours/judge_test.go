package neighbours

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"
)

var (
	addr  = netip.MustParseAddr("198.51.100.7")
	start = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
)

// event is a claim, or a question with "?" for the machine. An announcement has no question.
type event struct {
	ms       int
	mac      string
	question uint32
}

func judge(events ...event) *Judge {
	j := NewJudge()
	for _, e := range events {
		at := start.Add(time.Duration(e.ms) * time.Millisecond)
		if e.mac == "?" {
			j.Asked(addr, e.question, at)
			continue
		}
		j.Heard(Claim{At: at, Addr: addr, MAC: e.mac, Question: e.question})
	}
	return j
}

func TestOverlaps(t *testing.T) {
	for _, c := range []struct {
		what   string
		events []event
		want   string // part of the fault; "" for none
	}{
		{"one machine", []event{{0, "a", 0}, {10, "a", 1}, {20, "a", 2}, {300, "a", 0}}, ""},
		{"a take-over", []event{{0, "a", 0}, {10, "a", 1}, {3000, "b", 0}, {3010, "b", 2}, {9000, "b", 3}}, ""},
		{"a take-over that is answered before it is announced",
			[]event{{0, "a", 1}, {3000, "b", 2}, {3004, "b", 0}, {9000, "b", 3}}, ""},
		{"there and back", []event{{0, "a", 1}, {3000, "b", 0}, {3300, "b", 0}, {6000, "a", 0}, {12000, "a", 5}}, ""},
		{"two answer each question", []event{{0, "a", 1}, {1, "b", 1}, {10, "a", 2}, {11, "b", 2}},
			"a claimed an address at 12:00:00.010000, 9ms after b had taken it over"},
		{"the new holder reads a question late that the former one has answered",
			[]event{{0, "a", 1}, {10, "a", 2}, {900, "b", 1}, {901, "b", 2}, {905, "b", 0}, {7000, "b", 9}}, ""},
		{"two equal answers", []event{{0, "a", 1}, {1, "a", 1}}, ""},
		{"a late answer", []event{{0, "a", 1}, {3000, "b", 0}, {3500, "b", 2}, {9000, "a", 3}, {9900, "b", 4},
			{15000, "b", 5}},
			"a answered at 12:00:09.000000, between claims of b, and neither announced a take-over"},
		{"a holder that loses the address before it has announced it",
			[]event{{0, "a", 1}, {3000, "b", 2}, {5000, "a", 0}, {15000, "a", 4}}, ""},
		{"a late answer, between two of the new holder",
			[]event{{0, "a", 1}, {3000, "b", 0}, {3010, "a", 2}, {3020, "b", 3}},
			"a claimed an address at 12:00:03.010000, 10ms after b had taken it over"},
		{"two announce in turns", []event{{0, "a", 0}, {100, "b", 0}, {300, "a", 0}, {400, "b", 0}},
			"a claimed an address at 12:00:00.300000, 200ms after b had taken it over"},
	} {
		faults := judge(c.events...).Faults()
		if c.want == "" && len(faults) > 0 || c.want != "" && !strings.Contains(strings.Join(faults, "\n"), c.want) {
			t.Errorf("%s: %q, want %q", c.what, faults, c.want)
		}
	}
}

func TestGaps(t *testing.T) {
	asked := func(from, to int) (out []event) {
		for ms := from; ms < to; ms += 10 {
			out = append(out, event{ms, "?", uint32(ms/10 + 1)})
		}
		return out
	}
	answered := func(from, to int) (out []event) {
		for _, e := range asked(from, to) {
			out = append(out, e, event{e.ms + 2, "a", e.question})
		}
		return out
	}
	join := func(parts ...[]event) (out []event) {
		for _, p := range parts {
			out = append(out, p...)
		}
		return out
	}
	for _, c := range []struct {
		what   string
		events []event
		now    int
		want   int
	}{
		{"all answered", answered(0, 1000), 1000, 0},
		{"one lost", join(answered(0, 500), asked(500, 510), answered(510, 1000)), 1000, 10},
		{"none for a while", join(answered(0, 500), asked(500, 3200), answered(3200, 3300)), 3300, 2700},
		{"none since", join(answered(0, 500), asked(500, 3000)), 4000, 2490},
		{"nobody asks for a while", join(answered(0, 500), answered(3000, 3300)), 3300, 0},
	} {
		j := judge(c.events...)
		got := j.Gaps(start.Add(time.Duration(c.now) * time.Millisecond))[addr]
		if want := time.Duration(c.want) * time.Millisecond; got != want {
			t.Errorf("%s: %s, want %s", c.what, got, want)
		}
		if got := j.Gaps(start.Add(time.Duration(c.now) * time.Millisecond))[addr]; got != 0 {
			t.Errorf("%s: again %s", c.what, got)
		}
	}
}

func TestFrames(t *testing.T) {
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	for _, text := range []string{"198.51.100.7", "2001:db8::7"} {
		of := netip.MustParseAddr(text)
		question := ask(senders+77, mac, of)
		if c, ok := read(question); ok {
			t.Errorf("a question is read as %+v", c)
		}
		if got := questionOf(sender(senders+77, of.Is6())); got != 77 {
			t.Errorf("question %d", got)
		}
		if of.Is4() {
			answer := ask(77, mac, of) // the answer has the two ends in each other's place
			copy(answer[28:32], of.AsSlice())
			copy(answer[38:42], sender(77, false).AsSlice())
			answer[21] = 2
			if c, ok := read(answer); !ok || c.Addr != of || c.Question != 77 || c.MAC != mac.String() {
				t.Errorf("an answer is read as %+v, %v", c, ok)
			}
			copy(answer[38:42], of.AsSlice())
			if c, ok := read(answer); !ok || c.Addr != of || c.Question != 0 {
				t.Errorf("an announcement is read as %+v, %v", c, ok)
			}
			continue
		}
		if sum := checksum(netip.AddrFrom16([16]byte(question[22:])), netip.AddrFrom16([16]byte(question[38:])),
			question[54:]); sum != 0 {
			t.Errorf("the checksum is wrong by %x", sum)
		}
		question[54], question[78] = 136, 2 // as an advertisement
		copy(question[38:54], sender(77, true).AsSlice())
		if c, ok := read(question); !ok || c.Addr != of || c.Question != 77 || c.MAC != mac.String() {
			t.Errorf("an advertisement is read as %+v, %v", c, ok)
		}
	}
	for n := range etherLen + ipv6Len + messageLen + 8 {
		read(make([]byte, n))
	}
}
