package clusterstatus

import (
	"slices"
	"strings"
	"testing"

	"github.com/barque/barque/internal/terminal"
)

func TestQuorumText(t *testing.T) {
	for want, q := range map[string]QuorumStatus{
		"3 of 3 voters answer, 2 are needed, 1 may fail":    {Voters: 3, Needed: 2, Answering: 3, MayFail: 1},
		"1 of 3 voters answer, 2 are needed, none may fail": {Voters: 3, Needed: 2, Answering: 1},
		"1 of 1 voter answers, 1 is needed, none may fail":  {Voters: 1, Needed: 1, Answering: 1},
	} {
		if got := quorumText(&q); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestFormerServersInTheTable: each stands there once, whether gossip knows it yet or not.
func TestFormerServersInTheTable(t *testing.T) {
	s := &ClusterStatus{Former: []FormerServer{{Name: "s2"}, {Name: "s3"}}, Members: []MemberStatus{
		{Name: "s1", Role: "server", Store: &StoreStatus{State: "leader"}},
		{Name: "s2", Role: "server", Gossip: "dead"}}}
	var out strings.Builder
	if err := WriteMembers(&out, terminal.Screen{}, s); err != nil {
		t.Fatal(err)
	}
	var rows []string
	for line := range strings.Lines(out.String()) {
		rows = append(rows, strings.Join(strings.Fields(line)[:4], " "))
	}
	if got, want := strings.Join(rows[1:], "; "),
		"s1 server leader -; s2 server no member; s3 server no member"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestAddressesInTheText(t *testing.T) {
	got := addressTexts([]AnsweredAddress{
		{Address: "192.0.2.10", Node: "s1"}, {Address: "fd00::10"},
		{Address: "192.0.2.20", Service: "default/web", Node: "a1"}, {Address: "192.0.2.21", Service: "default/db"},
	})
	want := []string{"192.0.2.10 of the API: s1 answers", "fd00::10 of the API: no node answers",
		"2 addresses of Services, on 1 node"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := addressTexts(nil); got != nil {
		t.Errorf("without addresses: %q", got)
	}
}
