package cutoff

import (
	"context"
	"net/http"
)

// Proof is the kind of credentials that have proven the user of a request.
type Proof int

// Proofs.
const (
	ByCluster Proof = iota + 1 // a certificate of the cluster's own CAs
	ByProxy                    // a certificate of the CAs of authenticating proxies
	byToken                    // a bearer token
)

type proven struct {
	by    Proof
	token string
}

type proofKey struct{}

// WithProof wraps the handler that authenticates requests, which calls Proven or ProvenByToken.
// What has proven a user is noted then, and not judged again behind authorization: a request may
// wait there, and its CA may be believed no more meanwhile.
func WithProof(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS != nil {
			r = r.WithContext(context.WithValue(r.Context(), proofKey{}, new(proven)))
		}
		next.ServeHTTP(w, r)
	})
}

// Proven notes the proof of the user of the request with the context. It does nothing for a
// request that has not come through WithProof.
func Proven(ctx context.Context, by Proof) {
	if is := proofOf(ctx); is != nil {
		*is = proven{by: by}
	}
}

// ProvenByToken notes that a bearer token has proven the user, see Proven.
func ProvenByToken(ctx context.Context, token string) {
	if is := proofOf(ctx); is != nil {
		*is = proven{byToken, token}
	}
}

// proofOf returns the proof of the request with the context; nil if there is no place for one.
func proofOf(ctx context.Context) *proven {
	is, _ := ctx.Value(proofKey{}).(*proven)
	return is
}
