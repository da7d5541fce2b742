package gossip

import (
	"bytes"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/barque/barque/pki"
)

// maxProven bounds the number of remembered proofs. Beyond it all members are verified again.
const maxProven = 16_384

// proven caches each member's last verified metadata. Gossip repeats everything many times, and
// each full state exchange names all members. Verifying two signatures for each would be most of a
// pool's cost.
type proven struct {
	mu      sync.Mutex
	trust   <-chan struct{} // the Verifier's: with other CAs nothing of this holds
	members map[string]provenMember
}

// provenMember is verified metadata with its contents.
type provenMember struct {
	addr   netip.AddrPort
	meta   []byte
	holder pki.Credential
	facts  Facts
}

// prove is decodeMeta with a cache: it verifies signatures once for the same name, address and
// metadata.
func (p *Pool) prove(node *memberlist.Node) (pki.Credential, Facts, error) {
	now, addr, trust := p.config.Now(), addrOf(node), p.config.Authority.Changed()
	if m, ok := p.proven.get(trust, node.Name); ok && m.addr == addr && bytes.Equal(m.meta, node.Meta) {
		return m.holder, m.facts, ended(m.holder, now)
	}
	holder, facts, err := decodeMeta(p.config.Authority, p.config.ClusterID, node, now)
	if err == nil { // an expired one is rare, and may be verified again
		p.proven.put(trust, node.Name, provenMember{addr, bytes.Clone(node.Meta), holder, facts})
	}
	return holder, facts, err
}

// ended returns the error of a genuine but expired credential.
func ended(c pki.Credential, now time.Time) error {
	if now.After(c.NotAfter) {
		return fmt.Errorf("%w: that of %q, at %s", pki.ErrCredentialEnded, c.Name,
			c.NotAfter.UTC().Format(time.RFC3339))
	}
	return nil
}

func (p *proven) get(trust <-chan struct{}, name string) (provenMember, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m, ok := p.members[name]
	return m, ok && p.trust == trust
}

// put stores a result that was verified with the CAs of trust or newer ones: a change of the CAs
// replaces the channel.
func (p *proven) put(trust <-chan struct{}, name string, m provenMember) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.members[name]; p.trust != trust || p.members == nil || !known && len(p.members) >= maxProven {
		p.trust, p.members = trust, map[string]provenMember{}
	}
	p.members[name] = m
}

func (p *proven) forget(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.members, name)
}
