package exchange

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/barque/barque/pki"
)

// State is what the servers share.
type State struct {
	Format  int        `json:"format"`
	Cluster string     `json:"cluster"` // ID
	Bundle  pki.Bundle `json:"bundle"`
}

// format is raised when an older Barque could no longer read a State.
const format = 2

// errDamaged is returned for a State that no version of Barque has written. What servers believe is
// put in its place.
var errDamaged = errors.New("what the store says of the CAs is damaged")

// decode reads a State; nothing lies on the shelf when there is none.
func decode(data []byte) (s State, err error) {
	if len(data) == 0 {
		return s, nil
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return State{}, fmt.Errorf("%w: %w", errDamaged, err)
	}
	if s.Format != format {
		return State{}, fmt.Errorf("what the store says of the CAs has format %d, this version of Barque reads %d", s.Format, format)
	}
	if _, err := s.Bundle.NeedsKeys(); err != nil { // which reads all that is in it
		return State{}, fmt.Errorf("%w: %w", errDamaged, err)
	}
	return s, nil
}

// Member is a node, as gossip and the store know it.
type Member struct {
	Name   string
	Server bool
	Alive  bool
	// Generation is that of the CAs which it has taken over, and Signer the digest of the CA of its
	// certificates.
	Generation uint64
	Signer     string
}

// Waiting returns whom the exchange waits for before its next step, each with the reason; nothing
// when that can be made. issuer is the digest of the CA that issues.
func Waiting(b pki.Bundle, issuer string, members []Member) []string {
	var out []string
	for _, m := range members {
		kind := "agent"
		if m.Server {
			kind = "server"
		}
		switch {
		case !m.Alive && !b.Forced:
			out = append(out, fmt.Sprintf("%s %s shows no life", kind, m.Name))
		case !m.Alive:
		case m.Generation < b.Generation:
			out = append(out, fmt.Sprintf("%s %s has not taken the CAs over yet", kind, m.Name))
		case m.Signer != issuer:
			out = append(out, fmt.Sprintf("%s %s has certificates of another CA yet", kind, m.Name))
		}
	}
	slices.SortFunc(out, strings.Compare)
	return out
}
