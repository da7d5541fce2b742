package exchange

import (
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
const format = 1

// Member is a node, as gossip and the store know it.
type Member struct {
	Name   string
	Server bool
	Alive  bool
	// Generation is that of the CAs which it has taken over, and Signer the digest of the CA of its certificates.
	Generation uint64
	Signer     string
}

// Waiting returns whom the exchange waits for before its next step, each with the reason; nothing when that can be
// made. issuer is the digest of the CA that issues.
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
