package gossip

import (
	"errors"
	"testing"
	"time"

	"github.com/barque/barque/pki"
)

// A member whose certificates are revoked is not believed, whatever its credential says; others
// are, and a pool with it still merges. A revoked member itself sees the others.
func TestBarredMembers(t *testing.T) {
	ca := newCA(t)
	p := believer(t, pki.TrustOf(ca))
	revoked, good := memberOf(t, ca, "n1", time.Now().Add(time.Hour), Facts{}),
		memberOf(t, ca, "n2", time.Now().Add(time.Hour), Facts{})
	why := errors.New("its Node was deleted")
	if err := p.NotifyAlive(revoked); err != nil {
		t.Errorf("before: %v", err)
	}
	p.config.Barred = func(holder pki.Credential) error {
		if holder.Name == "n1" {
			return why
		}
		return nil
	}
	if err := p.NotifyAlive(revoked); !errors.Is(err, why) {
		t.Errorf("revoked: %v", err)
	}
	if err := p.NotifyAlive(good); err != nil {
		t.Errorf("another one: %v", err)
	}
	p.config.Name = "n1"
	if err := p.NotifyAlive(revoked); err != nil {
		t.Errorf("itself: %v", err)
	}
}
