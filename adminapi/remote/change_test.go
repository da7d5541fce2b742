package remote

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/barque/barque/adminapi"
	"github.com/barque/barque/internal/exitcode"
	"github.com/barque/barque/membership/exchange"
	"github.com/barque/barque/membership/keyring"
	"github.com/barque/barque/pki"
)

// TestNextStep: the operator's order and the state of the exchange decide the next step.
func TestNextStep(t *testing.T) {
	settled := exchange.Status{Generation: 1, Issuer: "old"}
	spreading := exchange.Status{Generation: 2, Step: pki.Spreading, Issuer: "old",
		Waiting: []string{"a1 shows no life"}}
	accounts := exchange.Status{Generation: 2, Step: pki.Spreading, Accounts: true, Issuer: "old",
		Waiting: []string{"s2 shows no life"}}
	external := exchange.Status{Generation: 1, Issuer: "old", External: true}
	separate := exchange.Status{Generation: 4, Issuer: "old", Separate: true}
	given := &exchange.Given{Chain: []byte("chain"), Key: []byte("key")}
	for name, c := range map[string]struct {
		is     exchange.Status
		wish   Wish
		change exchange.Change // empty: none
		says   string
		code   int
	}{
		"begin":         {settled, Wish{}, exchange.Begin, "The cluster's CA is exchanged for a new one.", 0},
		"go on waiting": {spreading, Wish{}, "", "", 0},
		"undo": {spreading, Wish{Undo: true}, exchange.Undo, "The old CA stays, the new one is dropped.",
			0},
		"force":            {spreading, Wish{Force: true}, exchange.Force, "a new token.\n  a1 shows no life\n", 0},
		"nothing to undo":  {settled, Wish{Undo: true}, "", "", exitcode.Refused},
		"nothing to force": {settled, Wish{Force: true}, "", "", exitcode.Refused},

		"begin accounts": {settled, Wish{Accounts: true}, exchange.BeginAccounts,
			"Certificates and join tokens stay.", 0},
		"undo accounts": {accounts, Wish{Accounts: true, Undo: true}, exchange.Undo, "The old key stays", 0},
		"force accounts": {accounts, Wish{Accounts: true, Force: true}, exchange.Force,
			"come back:\n  s2 shows no life\n", 0},
		"wait accounts":    {accounts, Wish{Accounts: true}, "", "", 0},
		"CA meanwhile":     {accounts, Wish{}, "", "", exitcode.Refused},
		"undo of the CA":   {accounts, Wish{Undo: true}, "", "", exitcode.Refused},
		"accounts besides": {spreading, Wish{Accounts: true, Force: true}, "", "", exitcode.Refused},

		"to an external one": {settled, Wish{Given: given}, exchange.BeginExternal,
			"exchanged for the one in the file.", 0},
		"to another external one": {external, Wish{Given: given}, exchange.BeginExternal,
			"exchanged for the one in the file.", 0},
		"from an external one": {external, Wish{}, "", "", exitcode.Refused},
		"from an external one, on wish": {external, Wish{BuiltIn: true}, exchange.BeginBuiltIn,
			"one that the cluster makes itself.", 0},
		"CAs of their own": {settled, Wish{}, exchange.Begin,
			"the way back of an upgrade ends. With --joint", 0},
		"and beside an external one": {settled, Wish{Given: given}, exchange.BeginExternal,
			"the way back of an upgrade ends. With --joint", 0},
		"one for all": {separate, Wish{Joint: true}, exchange.BeginJoint, "one for all purposes",
			0},
		"an external one for all": {separate, Wish{Joint: true, Given: given}, exchange.BeginExternalJoint,
			"the one in the file, as one for all purposes", 0},
		"from an external one to one": {external, Wish{Joint: true}, exchange.BeginJoint, "one for all purposes",
			0},
		"one for all meanwhile":           {spreading, Wish{Joint: true}, "", "", exitcode.Refused},
		"another one meanwhile":           {spreading, Wish{Given: given}, "", "", exitcode.Refused},
		"a built-in one meanwhile":        {spreading, Wish{BuiltIn: true}, "", "", exitcode.Refused},
		"an external one beside accounts": {accounts, Wish{Given: given}, "", "", exitcode.Refused},
		"accounts under an external one": {external, Wish{Accounts: true}, exchange.BeginAccounts,
			"Certificates and join tokens stay.", 0},
	} {
		step, err := NextStep(&c.is, c.wish)
		if step != nil && (len(step.Given.Key) > 0) != c.change.BringsCA() {
			t.Errorf("%s: the request has a CA: %v", name, len(step.Given.Key) > 0)
		}
		if step != nil &&
			strings.Contains(step.Text,
				"the way back of an upgrade ends") != (step.Change.BeginsCA() && !c.is.Separate && !c.wish.Joint) {
			t.Errorf("%s: the way back: %s", name, step.Text)
		}
		if exitCode(err) != c.code {
			t.Errorf("%s: %v", name, err)
		}
		switch {
		case step == nil && c.change != "":
			t.Errorf("%s: no step", name)
		case step != nil && step.Seen != c.is.Generation:
			t.Errorf("%s: it is for generation %d, and %d was seen", name, step.Seen, c.is.Generation)
		case step != nil && (step.Change != c.change || !strings.Contains(step.Text, c.says)):
			t.Errorf("%s: %+v", name, step)
		}
	}
}

// TestPurposes: while an exchange can be undone, the command names its effect on earlier versions,
// also without a confirmation.
func TestPurposes(t *testing.T) {
	one, more := exchange.Status{}, exchange.Status{Separate: true}
	for name, c := range map[string]struct {
		before, begun exchange.Status
		wish          Wish
		says          string // empty: nothing
	}{
		"to more":          {one, more, Wish{}, "refuse the data directories of servers from now on"},
		"earlier versions": {one, one, Wish{}, "one for clients, servers and the front proxy"},
		"as before":        {more, more, Wish{}, ""},
		"back":             {more, more, Wish{Joint: true}, ""},
		"one, as wished":   {one, one, Wish{Joint: true}, ""},
	} {
		said := Purposes(&c.before, &c.begun, c.wish)
		if (said == "") != (c.says == "") || !strings.Contains(said, c.says) ||
			said != "" && !strings.Contains(said, "--ca --undo") {
			t.Errorf("%s: %q", name, said)
		}
	}
}

// TestAwaitKeys: each step is reported once, until the rotation is at rest. The time-out's error
// has the state and the remedies in it.
func TestAwaitKeys(t *testing.T) {
	at := func(step keyring.Step, text string, waiting ...string) adminapi.KeysAnswer {
		return adminapi.KeysAnswer{Status: keyring.Status{Generation: 2, Step: step, Text: text, Waiting: waiting}}
	}
	looks := []adminapi.KeysAnswer{at(keyring.Add, "step 1"), at(keyring.Use, "step 2"), at(keyring.AtRest, "at rest")}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			t.Errorf("%s %s", r.Method, r.URL)
		}
		look := looks[0]
		if len(looks) > 1 {
			looks = looks[1:]
		}
		_ = json.NewEncoder(w).Encode(look)
	}))
	defer server.Close()
	config := &rest.Config{Host: server.URL}
	var said []string
	tell := func(text string) { said = append(said, text) }
	begun := at(keyring.Add, "step 1")
	answer, err := AwaitKeys(t.Context(), config, &begun, time.Hour, tell)
	if err != nil || answer.Text != "at rest" || !slices.Equal(said, []string{"step 1", "step 2"}) {
		t.Errorf("%v, %+v; it said %q", err, answer, said)
	}
	const undo, force = "`barque cluster keys rotate --undo` takes it back",
		"`barque cluster keys rotate --force` skips members that do not follow"
	for step, ways := range map[keyring.Step]string{keyring.Add: undo, keyring.Use: undo, keyring.Remove: force} {
		stuck := at(step, "step x", "a1", "a2")
		looks = []adminapi.KeysAnswer{stuck}
		_, err := AwaitKeys(t.Context(), config, &stuck, time.Nanosecond, tell)
		if exitCode(err) != exitcode.Unfinished ||
			!strings.Contains(err.Error(), "under way (step x, waiting for a1, a2)") ||
			!strings.HasSuffix(err.Error(), ways) {
			t.Errorf("%s: exit code %d: %v", step, exitCode(err), err)
		}
	}
}

// TestServerChangeIsCalledSo: errors have the word of the user, and no server where any will do.
func TestServerChangeIsCalledSo(t *testing.T) {
	for want, c := range map[string]ServerChange{
		"remove s1":          {Server: "s1", Change: adminapi.RemoveServer},
		"leave s1":           {Server: "s1", Change: adminapi.RemoveServer, Called: "leave"},
		"transfer-leader":    {Server: adminapi.AnyServer, Change: adminapi.LeadServer, Called: "transfer-leader"},
		"transfer-leader s2": {Server: "s2", Change: adminapi.LeadServer, Called: "transfer-leader"},
	} {
		if got := c.String(); got != want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

// TestWritePlan: a plan describes the effect on the quorum when there is one.
func TestWritePlan(t *testing.T) {
	for want, p := range map[string]adminapi.MemberAnswer{
		"Nothing is to be done: s1 is as it should be.\n": {Server: "s1"},
		"1. s1 loses its vote\n": {Server: "s1", Steps: []string{"s1 loses its vote"},
			Voters: adminapi.Span{Before: 2, After: 2}},
		"1. s1 loses its vote\nThen 2 servers vote instead of 3, and none may fail at once without harm instead of 1.\n": {
			Server: "s1", Steps: []string{"s1 loses its vote"}, Voters: adminapi.Span{Before: 3, After: 2},
			MayFail: adminapi.Span{Before: 1}},
		"1. s1 is taken out\n2. it stops\nThen 3 servers vote instead of 4, and as before, 1 may fail at once without harm.\n": {
			Server: "s1", Steps: []string{"s1 is taken out", "it stops"}, Voters: adminapi.Span{Before: 4, After: 3},
			MayFail: adminapi.Span{Before: 1, After: 1}},
	} {
		var out strings.Builder
		if err := WritePlan(&out, &p); err != nil || out.String() != want {
			t.Errorf("%v: %q, want %q", err, &out, want)
		}
	}
}
