package devices

import (
	"fmt"
	"math/rand/v2"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/structured"
)

// claimOf is a claim that has whole devices of one pool.
func claimOf(name, version string, devices ...string) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{}
	c.Namespace, c.Name, c.UID, c.ResourceVersion = "default", name, types.UID("uid-"+name), version
	if len(devices) > 0 {
		c.Status.Allocation = &resourcev1.AllocationResult{}
	}
	for _, d := range devices {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
			resourcev1.DeviceRequestAllocationResult{Request: "r", Driver: "d.example.com", Pool: "p", Device: d})
	}
	return c
}

func id(device string) structured.DeviceID {
	return structured.MakeDeviceID("d.example.com", "p", device)
}

func TestLedgerCountsWhatIsAboutToBeWritten(t *testing.T) {
	l := NewLedger()
	l.Show(claimOf("c", "1"))
	if err := l.Pend(claimOf("c", "1", "x")); err != nil {
		t.Fatal(err)
	}
	taken := func(want bool) {
		t.Helper()
		if got := l.State().AllocatedDevices.Has(id("x")); got != want {
			t.Errorf("x is taken: %t, want %t", got, want)
		}
	}
	taken(true)
	if err := l.Pend(claimOf("c", "1", "y")); err == nil {
		t.Error("a claim is allocated twice at once")
	}
	l.Drop("uid-c")
	taken(false)

	// The claim is written and the informer is behind: its older version does not free the device.
	if err := l.Pend(claimOf("c", "1", "x")); err != nil {
		t.Fatal(err)
	}
	if !l.Write(claimOf("c", "3", "x")) {
		t.Error("a known claim is not known")
	}
	l.Drop("uid-c")
	l.Show(claimOf("c", "2"))
	taken(true)
	if c, err := l.Get("default", "c"); err != nil || c.ResourceVersion != "3" {
		t.Errorf("the newest version is %+v, %v", c, err)
	}
	if err := l.Pend(claimOf("c", "1", "y")); err == nil {
		t.Error("a claim is allocated again")
	}
	l.Show(claimOf("c", "4"))
	taken(false)
	l.Show(claimOf("c", "5", "x"))
	l.Remove(claimOf("c", "5", "x"))
	taken(false)
	if l.Write(claimOf("c", "6", "x")) {
		t.Error("a claim that is gone is known")
	}
	taken(false)
}

func TestLedgerShares(t *testing.T) {
	share, admin, amount := types.UID("s"), true, resource.MustParse("3")
	c := claimOf("c", "1", "x", "y")
	results := c.Status.Allocation.Devices.Results
	results[0].ShareID, results[0].ConsumedCapacity = &share,
		map[resourcev1.QualifiedName]resource.Quantity{"memory": amount}
	results[1].AdminAccess = &admin
	l := NewLedger()
	l.Show(c)
	s := l.State()
	if len(s.AllocatedDevices) != 0 {
		t.Errorf("whole devices are taken: %v", s.AllocatedDevices)
	}
	if !s.AllocatedSharedDeviceIDs.Has(structured.MakeSharedDeviceID(id("x"), &share)) {
		t.Errorf("shares: %v", s.AllocatedSharedDeviceIDs)
	}
	if got := s.AggregatedCapacity[id("x")]["memory"]; got == nil || got.Cmp(amount) != 0 {
		t.Errorf("consumed capacity: %v", got)
	}
	l.Remove(c)
	if s := l.State(); len(s.AllocatedSharedDeviceIDs)+len(s.AggregatedCapacity) != 0 {
		t.Errorf("something is left: %+v", s)
	}
}

// TestLedgerAgainstAModel: after any order of events, the devices of the claims' newest versions
// and of pending allocations are taken.
func TestLedgerAgainstAModel(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 0))
		l := NewLedger()
		latest, pending := map[string]*resourcev1.ResourceClaim{}, map[string]*resourcev1.ResourceClaim{}
		version := 0
		for range 200 {
			name := fmt.Sprint("c", rng.IntN(5))
			version++
			var devices []string
			if rng.IntN(2) == 0 {
				devices = []string{name + "-" + fmt.Sprint(rng.IntN(2))} // no two claims have one device
			}
			c := claimOf(name, fmt.Sprint(version), devices...)
			known := latest[name]
			switch rng.IntN(5) {
			case 0:
				l.Show(c)
				latest[name] = c
			case 1:
				if l.Write(c) != (known != nil) {
					t.Fatalf("seed %d: Write of %s, known %t", seed, name, known == nil)
				}
				if known != nil {
					latest[name] = c
				}
			case 2:
				l.Remove(c)
				delete(latest, name)
			case 3:
				if len(devices) > 0 && l.Pend(c) == nil {
					if pending[name] != nil || known != nil && known.Status.Allocation != nil {
						t.Fatalf("seed %d: %s is allocated twice", seed, name)
					}
					pending[name] = c
				}
			case 4:
				l.Drop(c.UID)
				delete(pending, name)
			}
			want := map[structured.DeviceID]bool{}
			count := func(c *resourcev1.ResourceClaim) {
				eachDevice(c,
					func(id structured.DeviceID, _ *resourcev1.DeviceRequestAllocationResult) { want[id] = true })
			}
			for _, c := range latest {
				count(c)
			}
			for name, c := range pending {
				if k := latest[name]; k == nil || k.Status.Allocation == nil {
					count(c)
				}
			}
			got := l.State().AllocatedDevices
			if len(got) != len(want) {
				t.Fatalf("seed %d: taken %v, want %v", seed, got, want)
			}
			for id := range want {
				if !got.Has(id) {
					t.Fatalf("seed %d: taken %v, want %v", seed, got, want)
				}
			}
		}
	}
}
