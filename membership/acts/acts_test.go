package acts

import (
	"maps"
	"testing"

	"github.com/barque/barque/membership/exchange"
	"github.com/barque/barque/membership/rollover"
	"github.com/barque/barque/pki"
)

// state is a state of other keys than those of package exchange.
type state struct {
	generation uint64
	step       string
}

func (s state) At() (uint64, string) { return s.generation, s.step }

// cas is a state of the CAs.
func cas(generation uint64, step pki.Step, n int) rollover.State {
	return exchange.State{Bundle: pki.Bundle{Generation: generation, Step: step, CAs: make([]string, n)}}
}

// with returns a state with these CAs, and those that were believed once.
func with(s rollover.State, ca string, former ...string) rollover.State {
	is := s.(exchange.State)
	is.Bundle.CAs, is.Bundle.Former = []string{ca}, former
	return is
}

func TestRotation(t *testing.T) {
	at := func(step string) rollover.State { return state{7, step} }
	for what, c := range map[string]struct {
		of     Keys
		w      rollover.Written
		keys   Keys
		event  Event
		begins string
	}{
		"a CA is begun": {CA,
			rollover.Written{Before: cas(6, pki.Settled, 1), After: cas(7, pki.Spreading, 2)}, CA, Begun, "spreading"},
		"all have it": {CA,
			rollover.Written{Before: cas(6, pki.Spreading, 2), After: cas(7, pki.Issuing, 2), Cause: rollover.Advanced},
			CA, Distributed, "issuing"},
		"the old one is dropped": {CA,
			rollover.Written{Before: cas(6, pki.Issuing, 2), After: cas(7, pki.Settled, 1), Cause: rollover.Advanced},
			CA, Ended, "at-rest"},
		"it is given up": {CA,
			rollover.Written{Before: cas(6, pki.Spreading, 2), After: cas(7, pki.Settled, 1)}, CA, Undone, "at-rest"},
		"it is forced": {CA,
			rollover.Written{Before: cas(6, pki.Issuing, 2), After: cas(7, pki.Issuing, 2)}, CA, Forced, "issuing"},
		"a backup brought the last": {CA,
			rollover.Written{Before: cas(3, pki.Issuing, 2), After: cas(7, pki.Settled, 1), Cause: rollover.Repaired},
			CA, Repaired, "at-rest"},
		"a backup from before a CA": {CA,
			rollover.Written{Before: with(cas(3, pki.Settled, 1), "old"),
				After: with(cas(7, pki.Settled, 1), "new", "o"), Cause: rollover.Repaired}, CA, Repaired, "at-rest"},
		"from before one that was undone": {CA,
			rollover.Written{Before: with(cas(3, pki.Settled, 1), "ca"), After: with(cas(7, pki.Settled, 1), "ca", "n"),
				Cause: rollover.Repaired}, CA, Repaired, "at-rest"},
		"there was none": {CA,
			rollover.Written{Before: exchange.State{}, After: with(cas(7, pki.Settled, 1), "ca"),
				Cause: rollover.Repaired}, CA, Repaired, "at-rest"},
		"a backup from before a key of accounts": {CA,
			rollover.Written{Before: with(cas(3, pki.Settled, 1), "ca", "o"),
				After: with(cas(7, pki.Settled, 1), "ca", "o"), Cause: rollover.Repaired}, Accounts, Repaired,
			"at-rest"},

		"the accounts' key is begun": {CA,
			rollover.Written{Before: cas(6, pki.Settled, 1), After: cas(7, pki.Spreading, 1)}, Accounts, Begun,
			"spreading"},
		"all servers have it": {CA,
			rollover.Written{Before: cas(6, pki.Spreading, 1), After: cas(7, pki.Issuing, 1), Cause: rollover.Advanced},
			Accounts, Distributed, "issuing"},
		"it has ended": {CA,
			rollover.Written{Before: cas(6, pki.Issuing, 1), After: cas(7, pki.Settled, 1), Cause: rollover.Advanced},
			Accounts, Ended, "at-rest"},
		"the accounts' key is undone": {CA,
			rollover.Written{Before: cas(6, pki.Spreading, 1), After: cas(7, pki.Settled, 1)}, Accounts, Undone,
			"at-rest"},
		"a gossip key is begun": {Gossip, rollover.Written{Before: at(""), After: at("add")}, Gossip, Begun,
			"add"},
		"all have the gossip key": {Gossip,
			rollover.Written{Before: at("add"), After: at("use"), Cause: rollover.Advanced}, Gossip, Distributed,
			"use"},
		"all send with it": {Gossip,
			rollover.Written{Before: at("use"), After: at("remove"), Cause: rollover.Advanced}, Gossip, InUse,
			"remove"},
		"the old one is gone": {Gossip,
			rollover.Written{Before: at("remove"), After: at(""), Cause: rollover.Advanced}, Gossip, Ended, "at-rest"},
		"an operator takes it back": {Gossip, rollover.Written{Before: at("use"), After: at("back")}, Gossip,
			Undoing, "back"},
		"the new one is gone": {Gossip,
			rollover.Written{Before: at("withdraw"), After: at(""), Cause: rollover.Advanced}, Gossip, Undone,
			"at-rest"},
		"the rotation is forced": {Gossip, rollover.Written{Before: at("use"), After: at("use")}, Gossip, Forced,
			"use"},
		"a data key is begun": {Data, rollover.Written{Before: at(""), After: at("spread")}, Data, Begun,
			"spread"},
		"all objects are decrypted": {Data, rollover.Written{Before: at(""), After: at("rewrite")}, Data, Begun,
			"rewrite"},
		"all servers have the key": {Data,
			rollover.Written{Before: at("spread"), After: at("rewrite"), Cause: rollover.Advanced}, Data, Distributed,
			"rewrite"},
		"all objects are under it": {Data,
			rollover.Written{Before: at("rewrite"), After: at("clean"), Cause: rollover.Advanced}, Data, InUse,
			"clean"},
		"a backup came in between": {Data,
			rollover.Written{Before: at("clean"), After: at("rewrite"), Cause: rollover.Advanced}, Data, Again,
			"rewrite"},
		"the disks are clean": {Data,
			rollover.Written{Before: at("clean"), After: at(""), Cause: rollover.Advanced}, Data, Ended, "at-rest"},
		"a backup brought earlier ones": {Data,
			rollover.Written{Before: at(""), After: at("rewrite"), Cause: rollover.Repaired}, Data, Repaired,
			"rewrite"},
	} {
		want := map[string]string{"rotation.barque.io/keys": string(c.keys),
			"rotation.barque.io/event": string(c.event),
			"rotation.barque.io/step":  c.begins, "rotation.barque.io/generation": "7"}
		if got := Rotation(c.of, c.w); !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
}
