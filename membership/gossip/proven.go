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

// maxProven bounds of how many members it is remembered what they have proven. Beyond it all of
// them prove themselves again.
const maxProven = 16_384

// proven remembers what each member has proven last. Gossip repeats everything many times, and each
// exchange of the whole state names all members; two signatures for each of them would be most of
// what a pool costs.
type proven struct {
	mu      sync.Mutex
	trust   <-chan struct{} // the Verifier's: with other CAs nothing of this holds
	members map[string]provenMember
}

// provenMember is metadata whose signatures are right, and what it says.
type provenMember struct {
	addr   netip.AddrPort
	meta   []byte
	holder pki.Credential
	facts  Facts
}

// prove is decodeMeta, which looks at signatures once for the same name, address and metadata.
func (p *Pool) prove(node *memberlist.Node) (pki.Credential, Facts, error) {
	now, addr, trust := p.config.Now(), addrOf(node), p.config.Authority.Changed()
	if m, ok := p.proven.get(trust, node.Name); ok && m.addr == addr && bytes.Equal(m.meta, node.Meta) {
		return m.holder, m.facts, ended(m.holder, now)
	}
	holder, facts, err := decodeMeta(p.config.Authority, p.config.ClusterID, node, now)
	if err == nil { // one that has ended is rare, and may be looked at again
		p.proven.put(trust, node.Name, provenMember{addr, bytes.Clone(node.Meta), holder, facts})
	}
	return holder, facts, err
}

// ended returns the error of a genuine credential whose time is over.
func ended(c pki.Credential, now time.Time) error {
	if now.After(c.NotAfter) {
		return fmt.Errorf("%w: that of %q, at %s", pki.ErrCredentialEnded, c.Name, c.NotAfter.UTC().Format(time.RFC3339))
	}
	return nil
}

func (p *proven) get(trust <-chan struct{}, name string) (provenMember, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m, ok := p.members[name]
	return m, ok && p.trust == trust
}

// put remembers what was found while the CAs were those of trust, or newer: then the next look
// finds another channel.
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
