package identity

import (
	"context"
	"crypto"
	"errors"
	"math/big"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/pki"
)

// kept is an identity under an Upkeep, in virtual time. Its clock can be set.
type kept struct {
	*Identity
	upkeep Upkeep
	skew   atomic.Int64 // of its clock, in nanoseconds
	issued atomic.Int32
	fail   atomic.Bool
	done   chan error
}

func (k *kept) now() time.Time { return time.Now().Add(time.Duration(k.skew.Load())) }

func keep(t *testing.T, trust *pki.Trust, life time.Duration, wanted func() string) *kept {
	t.Helper()
	key, err := pki.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	k := &kept{done: make(chan error, 1)}
	issue := trust.Signs(func() pki.Request {
		return pki.Request{CommonName: "s1", Usage: pki.Server, Lifetime: life}
	}, k.now)
	k.Identity, err = New(t.Context(),
		Config{Name: "s1", Key: key, Now: k.now, Logger: quiet(), Issue: issue})
	if err != nil {
		t.Fatal(err)
	}
	k.upkeep = Upkeep{Name: "s1", Terms: func() []Term { return []Term{k.Term()} }, Now: k.now, Logger: quiet(),
		Wanted: wanted, Changed: trust.Changed,
		Renew: func(ctx context.Context) error {
			if k.fail.Load() {
				return errors.New("no server answers")
			}
			k.issued.Add(1)
			return k.Identity.Renew(ctx)
		}}
	return k
}

// run keeps it good until the test ends.
func (k *kept) run(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	go func() { k.done <- k.upkeep.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-k.done; err != nil {
			t.Error(err)
		}
	})
}

func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// exchange exchanges the CA of a trust, and the key of its service accounts.
func exchange(t *testing.T, trust *pki.Trust) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	next, err := pki.NextAuthority("c1", time.Now())
	must(err)
	account, err := pki.GenerateKey()
	must(err)
	var keys []crypto.Signer
	for _, ca := range []*pki.Authority{trust.Issuer(), next} {
		key, err := ca.Key()
		must(err)
		keys = append(keys, key)
	}
	keys = append(keys, account)
	b, err := trust.Bundle().Begin(next, account.Public(), time.Now())
	must(err)
	must(trust.Set(b, keys...))
	for range 2 {
		b, err := trust.Advance(time.Now())
		must(err)
		must(trust.Set(b, keys...))
	}
}

// A certificate is renewed after at most two thirds of its term, for any term, and once each time.
func TestCertificatesAreRenewedInTime(t *testing.T) {
	for _, life := range []time.Duration{time.Minute, time.Hour, 24 * time.Hour} {
		t.Run(life.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := keep(t, pki.TrustOf(newCA(t)), life, nil)
				k.run(t)
				for range 100 {
					pass(life / 20)
					if left := k.Term().NotAfter.Sub(k.now()); left < life/3-life/20 {
						t.Fatalf("only %v of %v is left", left, life)
					}
				}
				// Five terms: each certificate is used for 57 to 67 percent of its term, less the
				// time by which its start is dated back.
				if n := k.issued.Load(); n < 7 || n > 11 {
					t.Errorf("%d certificates were issued in five lives", n)
				}
			})
		})
	}
}

func TestAFailedRenewalIsRepeatedUntilItSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := keep(t, pki.TrustOf(newCA(t)), 3*24*time.Hour, nil)
		first := k.Certificate().Leaf
		k.fail.Store(true)
		k.run(t)
		pass(70 * time.Hour)
		if k.Certificate().Leaf != first {
			t.Fatal("renewed although that fails")
		}
		k.fail.Store(false)
		pass(11 * time.Minute)
		if k.Certificate().Leaf == first {
			t.Error("two hours before the end, it was not tried again for eleven minutes")
		}
		k.fail.Store(true)
		pass(6 * 24 * time.Hour) // it ends
		k.fail.Store(false)
		pass(11 * time.Second)
		if k.now().After(k.Term().NotAfter) {
			t.Error("one that has ended was not tried again for eleven seconds")
		}
	})
}

// A timer does not see that the clock is set.
func TestAClockThatJumpsRenewsWithinAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := keep(t, pki.TrustOf(newCA(t)), pki.LeafLifetime, nil)
		k.run(t)
		for _, jump := range []time.Duration{400 * 24 * time.Hour, -500 * 24 * time.Hour, 400 * 24 * time.Hour,
			250 * 24 * time.Hour} {
			pass(time.Hour)
			k.skew.Add(int64(jump))
			pass(lookAgain + time.Second)
			if term := k.Term(); !term.good(k.now()) {
				t.Fatalf("after a jump of %v it is good from %v to %v, and it is %v", jump, term.NotBefore,
					term.NotAfter, k.now())
			}
		}
	})
}

func TestAnExchangeOfTheCARenewsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		trust := pki.TrustOf(newCA(t))
		var k *kept
		k = keep(t, trust, pki.LeafLifetime, func() string {
			if !trust.Issued(k.Certificate().Leaf) {
				return "it is of the CA before"
			}
			return ""
		})
		k.run(t)
		pass(time.Hour)
		exchange(t, trust)
		synctest.Wait()
		if !trust.Issued(k.Certificate().Leaf) {
			t.Error("the certificate is of the old CA")
		}
		if n := k.issued.Load(); n != 1 {
			t.Errorf("%d certificates were issued for one exchange", n)
		}
	})
}

// An issuer whose clock is ahead must not cause a renewal after the other.
func TestRenewalsThatDoNotHelpAreRare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := keep(t, pki.TrustOf(newCA(t)), pki.LeafLifetime, nil)
		k.upkeep.Now = func() time.Time { return time.Now().Add(-time.Hour) } // behind the one that issues
		k.run(t)
		pass(30 * time.Minute)
		if n := k.issued.Load(); n > 4 {
			t.Errorf("asked %d times in half an hour", n)
		}
	})
}

func TestCheckFailsOnlyWhenNothingGoodIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := keep(t, pki.TrustOf(newCA(t)), 24*time.Hour, nil)
		k.fail.Store(true)
		pass(20 * time.Hour)
		if err := k.upkeep.Check(t.Context()); err != nil {
			t.Errorf("four hours before the end: %v", err)
		}
		pass(5 * time.Hour)
		if err := k.upkeep.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "no server answers") {
			t.Errorf("after the end: %v", err)
		}
		k.fail.Store(false)
		if err := k.upkeep.Check(t.Context()); err != nil || !k.Term().good(k.now()) {
			t.Errorf("a server answers: %v", err)
		}
	})
}

// Certificates that were issued at one moment are renewed at different times.
func TestRenewalsAreSpread(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	from := time.Unix(1e9, 0)
	to := from.Add(pki.LeafLifetime)
	first, last := to, from
	for range 1000 {
		term := Term{NotBefore: from, NotAfter: to, Serial: new(big.Int).SetUint64(random.Uint64())}
		due := term.Due()
		if due.After(from.Add(pki.LeafLifetime*2/3)) || due.Before(from.Add(pki.LeafLifetime*56/100)) {
			t.Fatalf("due at %v of %v to %v", due, from, to)
		}
		if due.Before(first) {
			first = due
		}
		if due.After(last) {
			last = due
		}
	}
	if spread := last.Sub(first); spread < pki.LeafLifetime/11 {
		t.Errorf("a thousand are due within %v", spread)
	}
}
