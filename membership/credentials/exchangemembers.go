package credentials

import (
	"time"

	"github.com/barque/barque/membership/exchange"
	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/pki"
)

// registering is how long an agent may be alive before it has its Node.
const registering = 2 * time.Minute

// ExchangeMembers are the members of the store, the nodes in the API, with the time when each was
// made, and agents that have joined just now and are not among these yet. Whoever else gossips was
// removed: a server that is no member, though its Node may be there yet, and an agent without a
// Node. They get no certificates any more, so waiting for them would be for ever. What gossip
// remembers of one that went before the Node of its name was made is another machine's.
func ExchangeMembers(now time.Time, servers []string, nodes map[string]time.Time, pool []gossip.Member) []exchange.Member {
	all := map[string]*exchange.Member{}
	for name := range nodes {
		all[name] = &exchange.Member{Name: name}
	}
	for _, name := range servers {
		all[name] = &exchange.Member{Name: name, Server: true}
	}
	for _, m := range pool {
		is, alive := all[m.Name], m.State == gossip.Alive
		made, registered := nodes[m.Name]
		switch {
		case !alive && registered && made.After(m.Since):
			continue
		case m.Role == pki.RoleServer && (is == nil || !is.Server):
			delete(all, m.Name)
			continue
		case is == nil && (!alive || now.Sub(m.Since) > registering):
			continue
		case is == nil:
			is = &exchange.Member{Name: m.Name}
			all[m.Name] = is
		}
		is.Alive, is.Generation, is.Signer = alive, m.Facts.Trust, m.ProvenBy
	}
	var out []exchange.Member
	for _, m := range all {
		out = append(out, *m)
	}
	return out
}
