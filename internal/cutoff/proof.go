package cutoff

import (
	"context"
	"net/http"
)

// Proof is the kind of CAs whose certificate has proven the user of a request.
type Proof int

// Proofs.
const (
	ByCluster Proof = iota + 1 // the cluster's own CAs
	ByProxy                    // the CAs of authenticating proxies
)

type proofKey struct{}

// WithProof wraps the handler that authenticates requests, which calls Proven. What has proven a
// user is noted then, and not judged again behind authorization: a request may wait there, and its
// CA may be believed no more meanwhile.
func WithProof(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
			r = r.WithContext(context.WithValue(r.Context(), proofKey{}, new(Proof)))
		}
		next.ServeHTTP(w, r)
	})
}

// Proven notes the proof of the user of the request with the context. It does nothing for a
// request that has not come through WithProof.
func Proven(ctx context.Context, by Proof) {
	if proof, ok := ctx.Value(proofKey{}).(*Proof); ok {
		*proof = by
	}
}

// provenBy reports whether that has proven the user.
func provenBy(ctx context.Context, by Proof) bool {
	proof, ok := ctx.Value(proofKey{}).(*Proof)
	return ok && *proof == by
}
