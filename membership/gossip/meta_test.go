package gossip

import (
	"crypto/ed25519"
	"crypto/elliptic"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/barque/barque/pki"
	"github.com/barque/barque/pki/companytest"
)

// A member that may begin with its name and zone has room for all later fields: that it
// leaves, that it is ill, generations of many digits, and a credential whose signature happens
// to be longer.
func TestWhatAMemberSaysLaterFits(t *testing.T) {
	builtIn, err := pki.NewAuthority(clusterID, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	long := companytest.NewRootOf(t, elliptic.P384())
	external, err := pki.ParseExternal(long.Chain(), long.KeyPEM(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for of, ca := range map[string]*pki.Authority{"P-256": builtIn, "P-384": external.Authority()} {
		for _, name := range []string{"s1", strings.Repeat("n", 63)} {
			t.Run(fmt.Sprint(of, " ", len(name)), func(t *testing.T) { testLaterFits(t, ca, name) })
		}
	}
}

func testLaterFits(t *testing.T, ca *pki.Authority, name string) {
	addr := netip.MustParseAddrPort("255.255.255.255:65535")
	longest := 0
	for size := range 400 {
		proof := proofOf(t, ca, name, "server", time.Now().Add(time.Hour))
		proof.Trust = 1
		facts := Facts{Zone: strings.Repeat("z", size), Version: "v1.37.2+barque.v0.1.0-dev.g0bca91a6", APIPort: 65535,
			PeerPort: 65535, PeerID: strings.Repeat("i", 26),
			Tokens: 2, Revoked: 1, DataKeys: 1, CAs: pki.BundleForm}
		p := &Pool{
			config: Config{Name: name, ClusterID: clusterID, Advertise: addr, Facts: facts, Authority: pki.TrustOf(ca),
				Proof: func() Proof { return proof }, Now: time.Now}}
		if p.provesItself() != nil {
			continue
		}
		longest = size
		facts.Leaving, facts.Health, facts.KeyGeneration, facts.Trust = true, 1<<len(healthNames)-1, 1234567, 1234567
		facts.Revoked, facts.DataKeys = 1234567890, 1234567
		facts.EncryptionFile, facts.PluginKeys, facts.Blind = 4294967295, 65535, true
		for range 20 {
			var err error
			proof.Credential, err = ca.SignCredential(
				pki.Credential{Name: name, Role: "server", Public: proof.Key.Public().(ed25519.PublicKey),
					NotAfter: time.Now().Add(time.Hour)})
			if err != nil {
				t.Fatal(err)
			}
			meta, err := encodeMeta(clusterID, name, addr, proof, facts)
			if err != nil {
				t.Fatalf("a zone of %d bytes is accepted, and does not fit later: %v", size, err)
			}
			node := &memberlist.Node{Name: name, Addr: addr.Addr().AsSlice(), Port: addr.Port(), Meta: meta}
			if holder, is, err := decodeMeta(pki.TrustOf(ca), clusterID, node, time.Now()); err != nil ||
				holder.Name != name || is != facts {
				t.Fatalf("a zone of %d bytes: %v %+v: %v", size, holder, is, err)
			}
			node.Name = "other"
			if _, _, err := decodeMeta(pki.TrustOf(ca), clusterID, node, time.Now()); err == nil {
				t.Fatalf("a zone of %d bytes: the metadata prove another member", size)
			}
		}
	}
	t.Logf("with a name of %d bytes a zone may have %d", len(name), longest)
	if longest < 63 { // the longest label {
		t.Errorf("a zone of %d bytes is the longest one", longest)
	}
}
