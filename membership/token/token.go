// Package token keeps the tokens by which machines join, outside of the Kubernetes API: no reader
// or writer of Secrets, or of any other object, gets at them. A record has no secret. It has the
// public half of the key that pki.Token.Key derives from the secret, and a machine proves by a
// signature that it holds the token. So nothing that is read from a server's disk, a backup or a
// recorded join lets a machine in. A signature also leaves no secret to compare, in constant time
// or otherwise.
//
// A token is for one role, expires, and may have a limited number of uses. A use is counted by a
// compare-and-set update, so two machines cannot share the last one, whichever servers they ask.
// Each Attempt counts once within AttemptTime: a machine whose join was interrupted repeats it with
// the same token. A machine that was removed from the cluster does not come back by it.
//
// Earlier versions kept tokens as bootstrap-token Secrets in kube-system, in clear. Such former
// tokens count until the leader has seen that no server is of such a version (Keeper).
package token

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode"
)

// Roles a token can be for.
const (
	Server = "server"
	Agent  = "agent"
)

var (
	// ErrUnknown is returned when no such token exists, or its secret is another one.
	ErrUnknown = errors.New(
		"the join token is not known to this cluster: it is another cluster's, or was deleted, or expired and was cleared away; make one with `barque token create`")
	// ErrExpired is returned when the token's time is over.
	ErrExpired = errors.New("the join token has expired; make a new one with `barque token create`")
	// ErrUsedUp is returned when all uses of the token are spent.
	ErrUsedUp = errors.New("the join token is used up; make a new one with `barque token create`")
	// ErrFormerCA is returned when the token was made for a CA that the cluster does not believe
	// any more.
	ErrFormerCA = errors.New(
		"the join token was made before the cluster's CA was exchanged, which made it void; make a new one with `barque token create`")
	// ErrRole is returned when the token is for another role.
	ErrRole = errors.New("the join token is for another role")
	// ErrFormer is returned for every token of the former kind once those count no more.
	ErrFormer = errors.New(
		"join tokens of the form b1 do not count any more: all servers are of a version that keeps tokens outside of Secrets; install that version on this machine, and make a new token with `barque token create`")
)

// Spec has the properties of a new token.
type Spec struct {
	Role        string        // Server or Agent
	TTL         time.Duration // 0: it does not end
	Uses        int           // 0: not limited
	Description string
}

// The defaults of a new token. A server's token gives the cluster's keys.
const (
	ServerTTL  = time.Hour
	ServerUses = 1
	AgentTTL   = 24 * time.Hour
)

// WithDefaults returns the spec with the defaults of its role for values that were not given.
func (s Spec) WithDefaults(ttlGiven, usesGiven bool) Spec {
	ttl, uses := AgentTTL, 0
	if s.Role == Server {
		ttl, uses = ServerTTL, ServerUses
	}
	if !ttlGiven {
		s.TTL = ttl
	}
	if !usesGiven {
		s.Uses = uses
	}
	return s
}

// shortestTTL of a token: a shorter one could expire before it reaches another machine with a
// slightly wrong clock.
const shortestTTL = time.Minute

// mostUses of a token with a limit: its record grows with each.
const mostUses = 1000

// longestDescription of a token, in bytes: all are listed in one table.
const longestDescription = 200

// Check refuses values that no token can have, and names the flag of `barque token create`.
func (s Spec) Check() error {
	switch {
	case s.Role != Server && s.Role != Agent:
		return fmt.Errorf("--role %q: want %s or %s", s.Role, Server, Agent)
	case s.TTL < 0:
		return fmt.Errorf("--ttl %s is negative", s.TTL)
	case s.TTL > 0 && s.TTL < shortestTTL:
		return fmt.Errorf("--ttl %s: want %s at least, or 0 for ever", s.TTL, shortestTTL)
	case s.Uses < 0:
		return fmt.Errorf("--uses %d is negative", s.Uses)
	case s.Uses > mostUses:
		return fmt.Errorf("--uses %d: want %d at most, or 0 for any number", s.Uses, mostUses)
	case len(s.Description) > longestDescription || strings.ContainsFunc(s.Description, unicode.IsControl):
		return fmt.Errorf("--description: want one line of %d bytes at most", longestDescription)
	}
	return nil
}

// Made is a new token, for programs. Token is shown once, here: the cluster does not keep it.
type Made struct {
	ID          string     `json:"id"`
	Token       string     `json:"token"`
	Role        string     `json:"role"`
	Expires     *time.Time `json:"expires,omitempty"` // absent: never
	Uses        int        `json:"uses,omitempty"`    // how many machines may join with it; absent: any number
	Description string     `json:"description,omitempty"`
}

// idForm is the form of a token's ID.
var idForm = regexp.MustCompile(`^[a-z0-9]+$`)

// IsID reports whether a text can be the ID of a token.
func IsID(text string) bool { return idForm.MatchString(text) }

// Info is a token without its secret.
type Info struct {
	ID          string    `json:"id"`
	Role        string    `json:"role"`
	Expires     time.Time `json:"expires,omitzero"`
	UsesLeft    int       `json:"usesLeft,omitempty"` // meaningful if Limited
	Limited     bool      `json:"limited"`
	Created     time.Time `json:"created,omitzero"`
	CreatedBy   string    `json:"createdBy,omitempty"` // the user
	Description string    `json:"description,omitempty"`
	CADigest    string    `json:"caDigest"` // of the CA for which it was made; it is void when that one is exchanged
	// Former is set for a token in a Secret, that an earlier version made.
	Former bool `json:"former,omitempty"`
}

// AttemptTime is for how long after its first use a token lets the same Attempt in again.
const AttemptTime = time.Hour

// Attempt is one machine's joining, from its first try to its end.
type Attempt struct {
	Role string // in which it joins
	Name string // of the machine
	// Secret is the machine's random text, the same in all retries; without one each try is an
	// attempt.
	Secret string
}

// digest is the stored form of the attempt.
func (a Attempt) digest() string {
	if a.Secret == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(a.Name + "\x00" + a.Secret))
	return hex.EncodeToString(sum[:])
}
