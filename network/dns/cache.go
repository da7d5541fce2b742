package dns

import (
	"container/list"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const (
	// cacheSize is how many answers of other servers are kept.
	cacheSize = 10000
	// longestAnswer is the longest cached message, in bytes on the wire. In memory its records take
	// some ten times as much. So an attacker can fill the cache with some hundred MiB at most, and
	// in normal use it takes a few MiB.
	longestAnswer = 1232
	// longestKept bounds the time in the cache, whatever the TTL, so that a node follows changes
	// soon. longestDenied bounds it for names or records that do not exist.
	longestKept   = 30 * time.Second
	longestDenied = 5 * time.Second
	// failureKept is the cache time of a failure, so that repeated questions do not cause new
	// requests (RFC 9520).
	failureKept = time.Second
)

// question is the cache's key: clients that ask for signatures get other answers.
type question struct {
	name     string // lower case
	kind     uint16
	do, cd   bool
	upstream *upstream
}

// answers caches other servers' answers, up to a number. The one that was asked for longest ago is
// dropped first.
type answers struct {
	mu      sync.Mutex
	entries map[question]*list.Element
	order   *list.List // of *kept, the one used last in front
	size    int
}

type kept struct {
	question question
	message  *dns.Msg // never changed
	at       time.Time
	until    time.Time
}

func newAnswers(size int) *answers {
	return &answers{entries: map[question]*list.Element{}, order: list.New(), size: size}
}

// get returns a copy of a cached answer, with the passed time subtracted from its TTLs.
func (c *answers) get(q question) (*dns.Msg, bool) {
	c.mu.Lock()
	element := c.entries[q]
	if element == nil {
		c.mu.Unlock()
		return nil, false
	}
	one := element.Value.(*kept)
	now := time.Now()
	if !now.Before(one.until) {
		c.drop(element)
		c.mu.Unlock()
		return nil, false
	}
	c.order.MoveToFront(element)
	c.mu.Unlock()
	message := one.message.Copy()
	age(message, uint32(now.Sub(one.at)/time.Second))
	return message, true
}

func age(message *dns.Msg, seconds uint32) {
	for _, section := range [][]dns.RR{message.Answer, message.Ns, message.Extra} {
		for _, record := range section {
			if h := record.Header(); h.Rrtype != dns.TypeOPT {
				h.Ttl -= min(h.Ttl, seconds)
			}
		}
	}
}

// put caches an answer for its lifetime. limit bounds that; 0 for the usual bound.
func (c *answers) put(q question, message *dns.Msg, limit time.Duration) {
	keep := lifetime(message, limit)
	if keep <= 0 || message.Len() > longestAnswer {
		return
	}
	now := time.Now()
	one := &kept{question: q, message: message.Copy(), at: now, until: now.Add(keep)}
	c.mu.Lock()
	defer c.mu.Unlock()
	if element := c.entries[q]; element != nil {
		c.drop(element)
	}
	c.entries[q] = c.order.PushFront(one)
	for c.order.Len() > c.size {
		c.drop(c.order.Back())
	}
}

func (c *answers) drop(element *list.Element) {
	delete(c.entries, element.Value.(*kept).question)
	c.order.Remove(element)
}

// lifetime is the cache time of an answer: its shortest TTL, or for a denial its SOA record by RFC
// 2308. A denial without one is not cached.
func lifetime(message *dns.Msg, limit time.Duration) time.Duration {
	if message.Truncated {
		return 0
	}
	switch message.Rcode {
	case dns.RcodeSuccess, dns.RcodeNameError:
	case dns.RcodeServerFailure, dns.RcodeRefused:
		return failureKept
	default:
		return 0
	}
	if limit == 0 {
		limit = longestKept
	}
	denial := message.Rcode == dns.RcodeNameError || len(message.Answer) == 0
	if denial {
		limit = min(limit, longestDenied)
	}
	authorized := false
	for _, record := range message.Ns {
		if soa, ok := record.(*dns.SOA); ok {
			authorized = true
			limit = min(limit, time.Duration(soa.Minttl)*time.Second)
		}
	}
	if denial && !authorized {
		return 0
	}
	for _, section := range [][]dns.RR{message.Answer, message.Ns, message.Extra} {
		for _, record := range section {
			if h := record.Header(); h.Rrtype != dns.TypeOPT {
				limit = min(limit, time.Duration(h.Ttl)*time.Second)
			}
		}
	}
	return limit
}
