package exchange

import (
	"fmt"
	"slices"

	"github.com/barque/barque/membership/rollover"
	"github.com/barque/barque/pki"
)

// Ready returns an error while this server does not have the key that signs the tokens of service
// accounts, by the state in its store: it would refuse the tokens of other servers. A server is in
// that position that was away while an exchange was forced.
//
// A key that no server has is not waited for: it was lost with all servers of then.
func (e *Exchange) Ready() error {
	seen, _, problem := e.Seen()
	own, cluster := e.cas.Trust.Bundle(), seen.Bundle
	if own.Generation >= cluster.Generation || len(cluster.AccountKeys) == 0 ||
		slices.Contains(own.AccountKeys, cluster.AccountKeys[0]) || e.cas.lost(own.Generation) {
		return nil
	}
	err := fmt.Errorf(
		"this server does not have the key yet that signs the tokens of service accounts: it uses generation %d of the keys, and the cluster %d", own.Generation, cluster.Generation)
	if problem != "" {
		err = fmt.Errorf("%w; %s", err, problem)
	}
	return err
}

// lost reports whether no server has a key that this one lacks, which uses that generation. Each
// that uses a later one may have it, and so may one that shows no life. The newest generation is
// not asked for: those with the key may be about to take it over, or cannot.
func (c *cas) lost(uses uint64) bool {
	members, err := c.Members()
	return err == nil && !slices.ContainsFunc(members, func(m rollover.Member) bool {
		return m.Role == pki.RoleServer && m.Barred == "" && (!m.Alive || m.Generation > uses)
	})
}
