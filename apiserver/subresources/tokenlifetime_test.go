package subresources

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apiserver/pkg/warning"

	"github.com/barque/barque/apiserver/authn"
)

type warnings []string

func (w *warnings) AddWarning(_, text string) { *w = append(*w, text) }

// TestTokenLifetimes: no token outlives the bound, those of pods included.
func TestTokenLifetimes(t *testing.T) {
	const day, year = 24 * time.Hour, 365 * 24 * time.Hour
	audiences := []string{"https://api"}
	for name, c := range map[string]struct {
		rules     TokenLifetimes
		pod       bool
		audience  string
		asked     time.Duration
		want      time.Duration
		warnAfter time.Duration
		warns     bool
	}{
		"an hour": {TokenLifetimes{Max: day, Extend: true}, false, "https://api", time.Hour,
			time.Hour, 0, false},
		"ten years": {TokenLifetimes{Max: day, Extend: true}, false, "https://api", 10 * year,
			day, 0, true},
		"ten years, without a bound": {TokenLifetimes{}, false, "https://api", 10 * year, 10 * year, 0, false},
		"the bound":                  {TokenLifetimes{Max: day}, false, "https://api", day, day, 0, false},
		"a pod's": {TokenLifetimes{Max: day, Extend: true}, true, "https://api",
			extendedRequest, day, extendedRequest, false},
		"a pod's, without a bound": {TokenLifetimes{Extend: true}, true, "https://api", extendedRequest, year,
			extendedRequest, false},
		"a pod's, without extension": {TokenLifetimes{Max: day}, true, "https://api", extendedRequest,
			extendedRequest, 0, false},
		"a pod's of a lower bound": {TokenLifetimes{Max: time.Hour, Extend: true}, true, "https://api",
			extendedRequest, time.Hour, 0, true},
		"a pod's for others": {TokenLifetimes{Max: day, Extend: true}, true, "vault", extendedRequest,
			extendedRequest, 0, false},
		"as long, of no pod": {TokenLifetimes{Max: day, Extend: true}, false, "https://api",
			extendedRequest, extendedRequest, 0, false},
		"a pod's of a lifetime of its own": {TokenLifetimes{Max: day, Extend: true}, true, "https://api",
			2 * time.Hour, 2 * time.Hour, 0, false},
		"a pod's of a lifetime that is long": {TokenLifetimes{Max: day, Extend: true}, true, "https://api", year, day,
			0, true},
	} {
		var warned warnings
		token := &Token{audiences: audiences, lifetimes: c.rules}
		seconds := int64(c.asked.Seconds())
		req := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
		b := &authn.Binding{Audiences: []string{c.audience}}
		if c.pod {
			b.PodName = "p"
		}
		token.setLifetime(warning.WithWarningRecorder(t.Context(), &warned), req, b, c.asked)
		if b.Lifetime != c.want || b.WarnAfter != c.warnAfter {
			t.Errorf("%s: %s, a warning after %s", name, b.Lifetime, b.WarnAfter)
		}
		var want warnings
		if c.warns {
			want = warnings{
				fmt.Sprintf("requested expiration of %d seconds shortened to %d seconds", int64(c.asked.Seconds()),
					int64(c.want.Seconds()))}
		}
		if !slices.Equal(warned, want) {
			t.Errorf("%s: warned %q", name, warned)
		}
		if *req.Spec.ExpirationSeconds != int64(min(c.asked, c.rules.bound(c.asked)).Seconds()) {
			t.Errorf("%s: the answer says %d seconds", name, *req.Spec.ExpirationSeconds)
		}
	}
	for range 1000 {
		rules := TokenLifetimes{Max: time.Hour + rand.N(10*year), Extend: rand.N(2) == 0}
		asked := minTokenLifetime + rand.N(10*year)
		if rand.N(2) == 0 {
			asked = extendedRequest
		}
		seconds := int64(asked.Seconds())
		req := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
		b := &authn.Binding{Audiences: audiences, PodName: "p"}
		(&Token{audiences: audiences, lifetimes: rules}).setLifetime(t.Context(), req, b, asked)
		if b.Lifetime > rules.Max || b.WarnAfter >= b.Lifetime {
			t.Fatalf("%+v: %s was asked for: %+v", rules, asked, b)
		}
	}
}

// bound returns the longest lifetime that may be requested.
func (l TokenLifetimes) bound(asked time.Duration) time.Duration {
	if l.Max == 0 {
		return asked
	}
	return l.Max
}
