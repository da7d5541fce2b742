package bootstrapsigner

import (
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// A signed ConfigMap is signed again to the same content. The order of the tokens does not matter,
// all other data stays, and nothing changes until the returned time.
func TestDecideConverges(t *testing.T) {
	for seed := range uint64(1000) {
		r := rand.New(rand.NewPCG(seed, 1))
		data := map[string]string{"other": "x"}
		for _, key := range []string{signed, signature + "aaaaaa", signature + "gone"} {
			if r.IntN(3) > 0 {
				data[key] = []string{"one", "two"}[r.IntN(2)]
			}
		}
		var tokens []*corev1.Secret
		for _, id := range []string{"aaaaaa", "bbbbbb", "cccccc"} {
			token := newToken(id)
			if r.IntN(2) == 0 {
				with("expiration", now.Add(time.Duration(r.IntN(5)-1)*time.Minute).Format(time.RFC3339))(token)
			}
			if r.IntN(4) == 0 {
				with("usage-bootstrap-signing", "false")(token)
			}
			if r.IntN(4) > 0 {
				tokens = append(tokens, token)
			}
		}
		next, again := decide(data, tokens, now)
		if next["other"] != "x" || next[signed] != data[signed] {
			t.Fatalf("seed %d: %v became %v", seed, data, next)
		}
		r.Shuffle(len(tokens), func(i, j int) { tokens[i], tokens[j] = tokens[j], tokens[i] })
		if second, _ := decide(next, tokens, now); !maps.Equal(second, next) {
			t.Fatalf("seed %d: %v became %v", seed, next, second)
		}
		if again == 0 {
			again = time.Hour
		}
		if later, _ := decide(next, tokens, now.Add(again-time.Second)); !maps.Equal(later, next) {
			t.Fatalf("seed %d: before the time that was told %v became %v", seed, next, later)
		}
		for key := range next {
			if _, ok := data[signed]; ok && key == signature+"gone" {
				t.Fatalf("seed %d: %s of no token is kept", seed, key)
			}
		}
	}
}
