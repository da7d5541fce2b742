package clusterstatus

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/membership/exchange"
	"github.com/barque/barque/pki"
)

// The status tells of the exchange of the CA what the leader says, unless another server knows
// more, and warns when it stands still; what keeps one server from following is that server's.
func TestExchangeInTheStatus(t *testing.T) {
	began := Noon.Add(-time.Minute)
	report := func(w *world, server string, generation uint64, step pki.Step, waiting ...string) *exchange.Status {
		w.reports[server].CA = &exchange.Status{Generation: generation, Step: step, Since: began, Waiting: waiting}
		return w.reports[server].CA
	}
	w := newWorld()
	if s := Assemble(Noon, w.observe(t)); s.CA != nil || s.ExchangeUnderWay() {
		t.Errorf("nobody has told: %+v", s.CA)
	}
	for _, server := range []string{"s1", "s2", "s3"} {
		report(w, server, 1, pki.Settled)
	}
	if s := Assemble(Noon, w.observe(t)); s.ExchangeUnderWay() || s.Health != Healthy {
		t.Errorf("none is under way: %+v, %v", s.CA, s.Warnings)
	}
	report(w, "s1", 2, pki.Spreading, "agent a1 shows no life")
	report(w, "s2", 2, pki.Spreading, "this server does not know all nodes yet")
	s := Assemble(Noon, w.observe(t)) // s3 has not heard of it
	if !s.ExchangeUnderWay() || !slices.Equal(s.CA.Waiting, []string{"agent a1 shows no life"}) || s.Health != Healthy {
		t.Errorf("it has just begun: %+v, %v", s.CA, s.Warnings)
	}
	began = Noon.Add(-time.Hour)
	report(w, "s1", 2, pki.Spreading, "agent a1 shows no life")
	report(w, "s3", 2, pki.Spreading).Problem = "the disk is full"
	s = Assemble(Noon, w.observe(t))
	if len(s.Warnings) != 2 || s.Health != Degraded || s.CA.Problem != "" {
		t.Fatalf("it stands still: %+v, %v", s.CA, s.Warnings)
	}
	stuck, problem := s.Warnings[0], s.Warnings[1]
	if stuck.Node != "" ||
		!strings.Contains(stuck.Text, "began at 2026-11-20T11:00:00Z, does not go on: step 1 of 3") ||
		!strings.Contains(stuck.Text, "agent a1 shows no life") ||
		!strings.Contains(stuck.Mend,
			"--force continues without them, and without waiting for extension API servers") ||
		!strings.Contains(stuck.Mend, "--undo") {
		t.Errorf("%+v", stuck)
	}
	if problem.Node != "s3" ||
		!strings.Contains(problem.Text, "server s3 does not follow the exchange of the CA: the disk is full") {
		t.Errorf("%+v", problem)
	}
	w.reports["s2"].CA = &exchange.Status{Generation: 3, Step: pki.Issuing, Since: began, Forced: true,
		Waiting: []string{"server s3 has not taken the CAs over yet"}}
	s = Assemble(Noon, w.observe(t)) // which the leader has not heard of
	if ways := ExchangeWays(s.CA); s.CA.Generation != 3 || strings.Contains(ways, "--undo") ||
		strings.Contains(ways, "--force") || !strings.Contains(ExchangeText(s.CA), "step 2 of 3") {
		t.Errorf("the second step, forced: %+v, %s", s.CA, ways)
	}
}

// TestServersThatAreNotKnownByKeys: `cert show` names them while the CA is exchanged.
func TestServersThatAreNotKnownByKeys(t *testing.T) {
	is := &exchange.Status{Generation: 2, Step: pki.Spreading}
	if text := ExchangeWarning(is); strings.Contains(text, "recorded no key") {
		t.Error(text)
	}
	is.Unrecorded = []string{"s2", "s3"}
	if text := ExchangeWarning(is); !strings.Contains(text,
		"recorded no key that the others could know them by: s2, s3") {
		t.Error(text)
	}
}
