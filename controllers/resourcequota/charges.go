package resourcequota

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"

	"github.com/barque/barque/controllers/runtime"
)

// inFlight bounds the time from an object's charge until it is stored and this server has seen it.
// It is usually milliseconds.
const inFlight = 2 * time.Second

// charges remembers the charges of quotas within inFlight. A count in that time may lack objects
// that are charged and about to be stored. If their share were released, the namespace could exceed
// its quota.
type charges struct {
	since time.Time // when the controller began to listen

	mu   sync.Mutex
	made map[runtime.Key][]made
}

// made is a charge.
type made struct {
	at  time.Time
	sum corev1.ResourceList
}

func newCharges(now time.Time) *charges {
	return &charges{since: now, made: map[runtime.Key][]made{}}
}

// saw notes by how much a quota's use went up.
func (c *charges) saw(key runtime.Key, was, is corev1.ResourceList, now time.Time) {
	sum := quotav1.RemoveZeros(quotav1.SubtractWithNonNegativeResult(is, was))
	if len(sum) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.made[key] = append(c.trim(key, now), made{now, sum})
}

// trim drops charges that are old. c.mu is held.
func (c *charges) trim(key runtime.Key, now time.Time) []made {
	list := c.made[key]
	for len(list) > 0 && now.Sub(list[0].at) >= inFlight {
		list = list[1:]
	}
	return list
}

func (c *charges) forget(key runtime.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.made, key)
}

// recent is the sum of a quota's charges within inFlight.
type recent struct {
	sum corev1.ResourceList
	// unknown means that the controller has not listened for that long.
	unknown bool
}

func (c *charges) recent(key runtime.Key, now time.Time) recent {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := recent{unknown: now.Sub(c.since) < inFlight}
	list := c.trim(key, now)
	if c.made[key] = list; len(list) == 0 {
		delete(c.made, key)
	}
	for _, m := range list {
		r.sum = quotav1.Add(r.sum, m.sum)
	}
	return r
}

// above returns a number with the charges added.
func (r recent) above(name corev1.ResourceName, n resource.Quantity) resource.Quantity {
	n = n.DeepCopy()
	n.Add(r.sum[name])
	return n
}
