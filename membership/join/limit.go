package join

import (
	"crypto/x509"
	"math"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/barque/barque/pki"
)

// The limits of clients without a node certificate, at one server. A joining machine makes two
// requests, and a few more when it retries. Nodes of the cluster are not limited: after an exchange
// of the CA all of them renew at once.
const (
	addressBurst = 40  // burst of requests from one address
	addressRate  = 4   // and a second, after that
	wholeBurst   = 400 // from all addresses
	wholeRate    = 100
	addressOpen  = 8  // requests of one address that are being answered
	wholeOpen    = 64 // of all
	// knownAddresses bounds the memory that such clients can take. Addresses beyond it share one
	// allowance.
	knownAddresses = 4096
	// bodyTimeout is how long the body of a request may take to arrive, from every client.
	bodyTimeout = 10 * time.Second
	// sayAgain is after how long a refused address is logged again.
	sayAgain = time.Minute
	// refusedCost is by how much more a refused token reduces the allowance of its address.
	refusedCost = 4
)

// allowance is a token bucket of requests, with the number of requests in progress.
type allowance struct {
	left float64
	at   time.Time // when left was right
	open int
	said time.Time // when its end was last logged

	refused time.Time // when a refusal was last logged
	unsaid  int       // refusals since then
}

func (a *allowance) fill(now time.Time, burst, rate float64) {
	if a.at.IsZero() {
		a.left = burst
	} else if since := now.Sub(a.at).Seconds(); since > 0 {
		a.left = min(burst, a.left+since*rate)
	}
	a.at = now
}

// limiter bounds the cost of clients without a node certificate.
type limiter struct {
	now func() time.Time

	mu        sync.Mutex
	whole     allowance
	addresses map[netip.Addr]*allowance
	others    allowance // of addresses beyond the limit
}

func newLimiter(now func() time.Time) *limiter {
	return &limiter{now: now, addresses: map[netip.Addr]*allowance{}}
}

// enter reports whether a request from the address may be answered; if so, leave must be called at
// its end. Otherwise after is the time of the next try, and first is set if the address has had no
// recent refusal.
func (l *limiter) enter(addr netip.Addr) (leave func(), after time.Duration, first bool) {
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	own := l.of(addr, now)
	own.fill(now, addressBurst, addressRate)
	l.whole.fill(now, wholeBurst, wholeRate)
	switch {
	case own.open >= addressOpen || l.whole.open >= wholeOpen:
		after = time.Second
	case own.left < 1:
		after = seconds((1 - own.left) / addressRate)
	case l.whole.left < 1:
		after = seconds((1 - l.whole.left) / wholeRate)
	default:
		for _, a := range []*allowance{own, &l.whole} {
			a.left--
			a.open++
		}
		return func() { l.leave(own) }, 0, false
	}
	if first = now.Sub(own.said) >= sayAgain; first {
		own.said = now
	}
	return nil, after, first
}

// refused notes the refusal of a request that was answered, with ofToken one for its token. It
// reports whether to log it, and how many were not logged since the last one that was.
func (l *limiter) refused(addr netip.Addr, ofToken bool) (say bool, unsaid int) {
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	own := l.of(addr, now)
	own.fill(now, addressBurst, addressRate)
	if ofToken {
		own.left -= refusedCost
	}
	if !own.refused.IsZero() && now.Sub(own.refused) < sayAgain {
		own.unsaid++
		return false, 0
	}
	unsaid, own.refused, own.unsaid = own.unsaid, now, 0
	return true, unsaid
}

func seconds(s float64) time.Duration { return time.Duration(math.Ceil(s)) * time.Second }

func (l *limiter) leave(own *allowance) {
	l.mu.Lock()
	defer l.mu.Unlock()
	own.open--
	l.whole.open--
}

// of returns the allowance of an address. IPv6 addresses share that of their network, which may
// belong to one machine. The caller holds mu.
func (l *limiter) of(addr netip.Addr, now time.Time) *allowance {
	addr = addr.Unmap()
	if addr.Is6() {
		if network, err := addr.WithZone("").Prefix(64); err == nil {
			addr = network.Addr()
		}
	}
	if a := l.addresses[addr]; a != nil {
		return a
	}
	if len(l.addresses) >= knownAddresses {
		for known, a := range l.addresses {
			if a.open == 0 && now.Sub(a.at).Seconds()*addressRate >= addressBurst-a.left &&
				now.Sub(a.refused) >= sayAgain { // it is full again: as a new one
				delete(l.addresses, known)
			}
		}
	}
	if len(l.addresses) >= knownAddresses {
		return &l.others
	}
	a := &allowance{}
	l.addresses[addr] = a
	return a
}

// clientOf returns the address of the client; all that cannot be read share one.
func clientOf(r *http.Request) netip.Addr {
	from, _ := netip.ParseAddrPort(r.RemoteAddr)
	return from.Addr()
}

// isNode reports whether the request is made with a certificate of the cluster that counts, other
// than one for a CertificateSigningRequest. Servers may have a CA of their own. One of the front
// proxy's CA has no business here.
func (h *Handler) isNode(r *http.Request) bool {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return false
	}
	certs := r.TLS.PeerCertificates
	verifies := func(by pki.Purpose) bool {
		return h.config.Authority.VerifyFor(by, certs[0], certs[1:], x509.ExtKeyUsageClientAuth, h.config.Now()) == nil
	}
	return !pki.SignedOnRequest(certs[0]) && (verifies(pki.Clients) || verifies(pki.Peers)) &&
		h.config.Revoked(certs[0]) == nil
}
