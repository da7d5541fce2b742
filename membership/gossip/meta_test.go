package gossip

import (
	"crypto/ed25519"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/pki"
)

// Who may begin with its name and zone can say everything that comes later: that it leaves, that it
// is ill, generations of many digits, and a credential whose signature happens to be longer.
func TestWhatAMemberSaysLaterFits(t *testing.T) {
	ca, err := pki.NewAuthority(clusterID, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	addr := netip.MustParseAddrPort("255.255.255.255:65535")
	longest := 0
	for size := range 400 {
		proof := proofOf(t, ca, "s1", "server", time.Now().Add(time.Hour))
		proof.Trust = 1
		facts := Facts{Zone: strings.Repeat("z", size), Version: "v1.2.3", APIPort: 65535, PeerPort: 65535, PeerID: strings.Repeat("i", 26)}
		p := &Pool{config: Config{Name: "s1", ClusterID: clusterID, Advertise: addr, Facts: facts, Authority: pki.TrustOf(ca),
			Proof: func() Proof { return proof }, Now: time.Now}}
		if p.provesItself() != nil {
			continue
		}
		longest = size
		facts.Leaving, facts.Health, facts.KeyGeneration, facts.Trust = true, 1<<len(healthNames)-1, 123456, 123456
		for range 20 {
			proof.Credential, err = ca.SignCredential(pki.Credential{Name: "s1", Role: "server", Public: proof.Key.Public().(ed25519.PublicKey), NotAfter: time.Now().Add(time.Hour)})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := encodeMeta(clusterID, "s1", addr, proof, facts); err != nil {
				t.Fatalf("a zone of %d bytes is accepted, and does not fit later: %v", size, err)
			}
		}
	}
	if longest < 50 {
		t.Errorf("a zone of %d bytes is the longest one", longest)
	}
}
