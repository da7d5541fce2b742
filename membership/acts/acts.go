// Package acts describes acts of the servers for the audit log: the steps of rotations, and changes
// of the members. No request stands for them, or one for many. The descriptions have no secrets.
package acts

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/barque/barque/membership/exchange"
	"github.com/barque/barque/membership/rollover"
	"github.com/barque/barque/pki"
)

// Leader is the user of the leader's acts.
const Leader = "barque:leader"

// Keys are the kind of keys that a rotation replaces.
type Keys string

// Kinds of keys.
const (
	CA       Keys = "ca"
	Accounts Keys = "service-accounts"
	Gossip   Keys = "gossip"
	Data     Keys = "data"
)

// Annotations of an event, by their names without the prefix.
const (
	RotationPrefix   = "rotation.barque.io/"
	MembersPrefix    = "members.barque.io/"
	RevocationPrefix = "revocation.barque.io/"
	TokenPrefix      = "token.barque.io/"

	AnnotationKeys       = "keys"       // Keys
	AnnotationEvent      = "event"      // Event
	AnnotationStep       = "step"       // that begins; "at-rest" when none does
	AnnotationGeneration = "generation" // of the keys

	AnnotationChange = "change" // of the members
	AnnotationServer = "server" // its name
	AnnotationID     = "id"     // of the server in the store
	AnnotationWhy    = "why"

	AnnotationAct    = "act"  // of an operator: revoke or readmit
	AnnotationKind   = "kind" // of a revocation
	AnnotationName   = "name"
	AnnotationSerial = "serial"

	AnnotationToken = "token-id" // of a join token
	AnnotationRole  = "role"
	AnnotationUses  = "uses"
	AnnotationTTL   = "ttl"
)

// Event is a rotation's progress.
type Event string

// Events of a rotation.
const (
	Begun       Event = "begun"
	Distributed Event = "distributed" // all have the new key; from now on it is used
	InUse       Event = "in-use"      // the old key is used no more, and dropped
	Ended       Event = "ended"
	Undoing     Event = "undoing"
	Undone      Event = "undone"
	Forced      Event = "forced"   // it waits no longer for members without a sign of life
	Repaired    Event = "repaired" // a restored backup had brought an earlier state
	Again       Event = "again"    // a step before is repeated
)

// transition is a change of the step.
type transition struct{ from, to string }

const atRest = "at-rest"

// events are those of each rotation. A transition that is missing begins or ends one, or repeats a
// step.
var events = map[Keys]map[transition]Event{
	CA: {
		{string(pki.Spreading), string(pki.Issuing)}: Distributed,
		{string(pki.Spreading), atRest}:              Undone,
	},
	Gossip: {
		{"add", "use"}: Distributed, {"use", "remove"}: InUse, {"use", "back"}: Undoing, {"back", "withdraw"}: Undoing,
		{"add", "withdraw"}:  Undoing,
		{"withdraw", atRest}: Undone,
	},
	Data: {{"spread", "rewrite"}: Distributed, {"rewrite", "clean"}: InUse},
}

// Rotation returns the annotations of a state that was written. keys are CA for both kinds that
// package exchange has.
func Rotation(keys Keys, w rollover.Written) map[string]string {
	_, from := w.Before.At()
	generation, to := w.After.At()
	of, from, to := events[keys], cmp.Or(from, atRest), cmp.Or(to, atRest)
	if accounts(w) {
		keys = Accounts
	}
	event, known := of[transition{from, to}]
	switch {
	case w.Cause == rollover.Repaired:
		event = Repaired
	case known:
	case from == to:
		event = Forced
	case from == atRest:
		event = Begun
	case to == atRest:
		event = Ended
	default:
		event = Again
	}
	return map[string]string{RotationPrefix + AnnotationKeys: string(keys),
		RotationPrefix + AnnotationEvent: string(event),
		RotationPrefix + AnnotationStep:  to, RotationPrefix + AnnotationGeneration: strconv.FormatUint(generation, 10)}
}

// accounts reports whether the key of service accounts alone is exchanged. A repair may be from
// before a whole exchange of the CA, or before one that was undone.
func accounts(w rollover.Written) bool {
	before, ok := w.Before.(exchange.State)
	after, also := w.After.(exchange.State)
	return ok && also && !before.Bundle.ExchangesCA() && !after.Bundle.ExchangesCA() &&
		slices.Equal(before.Bundle.CAs, after.Bundle.CAs) && slices.Equal(before.Bundle.Former, after.Bundle.Former)
}

// Member returns the annotations of a change of the members of the store.
func Member(change, server, id, why string) map[string]string {
	return map[string]string{MembersPrefix + AnnotationChange: change, MembersPrefix + AnnotationServer: server,
		MembersPrefix + AnnotationID:  id,
		MembersPrefix + AnnotationWhy: why}
}

// Revocation returns the annotations of a revocation of certificates.
func Revocation(kind, name, why string) map[string]string {
	return map[string]string{RevocationPrefix + AnnotationKind: kind, RevocationPrefix + AnnotationName: name,
		RevocationPrefix + AnnotationWhy: why}
}

// Order returns the annotations of an operator's order about certificates. Empty ones are left out.
func Order(act, kind, name, serial string) map[string]string {
	return filled(RevocationPrefix,
		map[string]string{AnnotationAct: act, AnnotationKind: kind, AnnotationName: name, AnnotationSerial: serial})
}

// Token returns the annotations of the order of a join token. Uses of 0 is any number, and a TTL of
// 0 for ever.
func Token(role string, uses int, ttl time.Duration) map[string]string {
	number, lasts := "any", "unlimited"
	if uses > 0 {
		number = strconv.Itoa(uses)
	}
	if ttl > 0 {
		lasts = ttl.String()
	}
	return filled(TokenPrefix, map[string]string{AnnotationRole: role, AnnotationUses: number, AnnotationTTL: lasts})
}

// TokenID returns the annotation with the ID of a join token.
func TokenID(id string) map[string]string {
	return map[string]string{TokenPrefix + AnnotationToken: id}
}

func filled(prefix string, all map[string]string) map[string]string {
	out := map[string]string{}
	for name, value := range all {
		if value != "" {
			out[prefix+name] = value
		}
	}
	return out
}

// shown are the annotations that say most of an act, in their order.
var shown = []string{
	"join.barque.io/node", "join.barque.io/token-id", "backup.barque.io/file",
	RotationPrefix + AnnotationKeys, RotationPrefix + AnnotationEvent, RotationPrefix + AnnotationGeneration,
	MembersPrefix + AnnotationChange, MembersPrefix + AnnotationServer,
	RevocationPrefix + AnnotationAct, RevocationPrefix + AnnotationKind, RevocationPrefix + AnnotationName,
	RevocationPrefix + AnnotationSerial,
	TokenPrefix + AnnotationToken, TokenPrefix + AnnotationRole, TokenPrefix + AnnotationUses,
	TokenPrefix + AnnotationTTL,
	"upgrade.barque.io/version", "upgrade.barque.io/node", "upgrade.barque.io/phase",
}

// Text says in a few words which act the annotations of an event describe; empty if none.
func Text(annotations map[string]string) string {
	var words []string
	for _, name := range shown {
		if value := annotations[name]; value != "" {
			words = append(words, name[strings.Index(name, "/")+1:]+"="+value)
		}
	}
	return strings.Join(words, " ")
}
