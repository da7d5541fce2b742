package pool

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func TestAnnouncing(t *testing.T) {
	for name, c := range map[string]struct {
		spec Spec
		want string
	}{
		"nothing": {Spec{}, "{true false [] [] 100}"},
		"BGP":     {Spec{Announce: []string{"BGP"}}, "{false true [] [] 100}"},
		"both": {Spec{Announce: []string{"ARP", "BGP"}, BGP: &BGPSpec{LocalPreference: ptr.To[uint32](0)}},
			"{true true [] [] 0}"},
		"another way": {Spec{Announce: []string{"OSPF"}}, `{true false [] [] 0} announce: "OSPF" is neither ARP nor BGP`},
		"communities": {Spec{Announce: []string{"BGP"}, BGP: &BGPSpec{
			Communities: []string{"2:1", "no-export", "1:65535", "2:1", "4294967295:0:2", "1:0:2"}}},
			"{false true [131071 131073 4294967041] [[1 0 2] [4294967295 0 2]] 100}"},
		// Without its communities a route is not announced: it could go too far.
		"a wrong community": {Spec{Announce: []string{"ARP", "BGP"}, BGP: &BGPSpec{Communities: []string{"70000:1"}}},
			`{true false [] [] 0} communities: "70000:1" is no community: want two numbers up to 65535 such as 64512:100, ` +
				"three such as 64512:1:100, or a name such as no-export"},
		"a number": {Spec{BGP: &BGPSpec{Communities: []string{"7"}}},
			`{true false [] [] 0} communities: "7" is no community: want two numbers up to 65535 such as 64512:100, ` +
				"three such as 64512:1:100, or a name such as no-export"},
	} {
		t.Run(name, func(t *testing.T) {
			a, err := announcing(&c.spec)
			got := fmt.Sprint(a)
			if err != nil {
				got += " " + err.Error()
			}
			if got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// TestWays: of pools that overlap the older one counts, and an address of none goes by ARP.
func TestWays(t *testing.T) {
	object := func(name string, age int, way string, addresses ...string) *Object {
		return &Object{
			ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Unix(int64(1000-age), 0))},
			Spec:       Spec{Addresses: addresses, Announce: []string{way}}}
	}
	ways := WaysOf([]*Object{object("new", 1, "BGP", "192.0.2.0/28"), object("old", 9, "ARP", "192.0.2.8/29"),
		object("half", 1, "BGP", "x", "2001:db8::/120")})
	for text, bgp := range map[string]bool{"192.0.2.1": true, "192.0.2.9": false, "192.0.2.99": false,
		"2001:db8::1": true} {
		if got := ways.Of(netip.MustParseAddr(text)); got.BGP != bgp || got.ARP == bgp {
			t.Errorf("%s: %+v", text, got)
		}
	}
}
