package identity

import (
	"context"
	"crypto/x509"
	"log/slog"
	"math/big"
	"time"
)

// Term is the validity of a certificate, or of anything that ends.
type Term struct {
	NotBefore, NotAfter time.Time
	// Serial spreads the renewals of many certificates over time: certificates of one moment are
	// due at different times.
	Serial *big.Int
}

// TermOf returns the validity of a certificate.
func TermOf(cert *x509.Certificate) Term {
	return Term{cert.NotBefore, cert.NotAfter, cert.SerialNumber}
}

// Due is the time for the renewal: after 57 to 67 percent of its life, by its serial number.
func (t Term) Due() time.Time {
	life := t.NotAfter.Sub(t.NotBefore)
	var early time.Duration
	if t.Serial != nil {
		early = life / 10 / 1024 * time.Duration(new(big.Int).And(t.Serial, big.NewInt(1023)).Int64())
	}
	return t.NotAfter.Add(-life/3 - early)
}

// good reports whether no renewal is due.
func (t Term) good(now time.Time) bool { return now.Before(t.Due()) && !now.Before(t.NotBefore) }

// Upkeep renews certificates before they end, all together, without a restart.
type Upkeep struct {
	Name string // in logs
	// Terms returns the terms of all certificates that are renewed together.
	Terms func() []Term
	// Wanted returns the reason for a renewal that is not due yet, "" for none. It may be nil.
	Wanted func() string
	// Changed returns a channel that is closed when the result of Wanted may have changed. It may
	// be nil.
	Changed func() <-chan struct{}
	// Renew renews all certificates.
	Renew  func(ctx context.Context) error
	Now    func() time.Time
	Logger *slog.Logger
}

// lookAgain bounds the sleep of an Upkeep. A timer does not notice that the clock was set, or that
// the machine was suspended; a look at the clock does. A machine without a battery for its clock
// may start with a wrong time. It must soon replace the certificates that it issued by it.
const lookAgain = 10 * time.Second

// wantedRetry is the pause before a wanted renewal that is not due is tried again.
const wantedRetry = 5 * time.Second

// need is the result of a look at the clock.
type need struct {
	why       string    // why a renewal is needed now; empty: it is not
	due, ends time.Time // when the first certificate is due, and ends
	early     bool      // it is wanted before it is due
}

// Run renews in time until the context ends. A failed renewal is repeated, more often as the end
// comes nearer.
func (u Upkeep) Run(ctx context.Context) error {
	for {
		var changed <-chan struct{}
		if u.Changed != nil {
			changed = u.Changed() // before the look: a later change is seen in the next round
		}
		now := u.Now()
		n := u.look(now)
		wait := min(n.due.Sub(now), lookAgain)
		if n.why != "" {
			wait = u.renew(ctx, n)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-changed:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// Check renews once if a renewal is needed. It fails only if the renewal failed and the present
// certificates have ended.
func (u Upkeep) Check(ctx context.Context) error {
	n := u.look(u.Now())
	if n.why == "" {
		return nil
	}
	err := u.Renew(ctx)
	if err == nil {
		return nil
	}
	if n := u.look(u.Now()); u.Now().Before(n.ends) {
		u.Logger.Warn("certificates could not be renewed; the old ones are good for some time yet", "certificates",
			u.Name, "reason", n.why, "notAfter", n.ends, "err", err)
		return nil
	}
	return err
}

func (u Upkeep) look(now time.Time) need {
	n := need{due: now.Add(lookAgain), ends: now.Add(lookAgain)} // of nothing
	for i, t := range u.Terms() {
		if i == 0 || t.Due().Before(n.due) {
			n.due = t.Due()
		}
		if i == 0 || t.NotAfter.Before(n.ends) {
			n.ends = t.NotAfter
		}
		switch {
		case now.After(t.NotAfter):
			n.why = "it has ended"
		case now.Before(t.NotBefore):
			n.why = "it is not valid yet by this machine's clock"
		case n.why == "" && !now.Before(t.Due()):
			n.why = "most of its life is over"
		}
	}
	if n.why == "" && u.Wanted != nil {
		n.why = u.Wanted()
		n.early = n.why != ""
	}
	return n
}

// renew renews once and returns how long to wait before the next look.
func (u Upkeep) renew(ctx context.Context, n need) time.Duration {
	if err := u.Renew(ctx); err != nil {
		wait := n.retryIn(u.Now())
		if ctx.Err() == nil {
			u.Logger.Error("certificates could not be renewed", "certificates", u.Name, "reason", n.why, "notAfter",
				n.ends, "retryIn", wait, "err", err)
		}
		return wait
	}
	now := u.Now()
	is := u.look(now)
	u.Logger.Info("certificates renewed", "certificates", u.Name, "reason", n.why, "notAfter", is.ends)
	if is.why == "" {
		return min(is.due.Sub(now), lookAgain)
	}
	wait := is.retryIn(now) // the renewal did not help: two clocks differ, or another change came meanwhile
	u.Logger.Warn("the new certificates are to be renewed, too", "certificates", u.Name, "reason", is.why, "retryIn",
		wait)
	return wait
}

// retryIn is how long to wait after a failure.
func (n need) retryIn(now time.Time) time.Duration {
	left := n.ends.Sub(now)
	switch {
	case left <= 0:
		return 10 * time.Second
	case n.early:
		return min(wantedRetry, max(left/20, time.Second))
	}
	return min(max(left/20, time.Second), 10*time.Minute)
}
