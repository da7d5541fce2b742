package storage

import (
	"context"
	"net/http"
	"strconv"
)

// LeaderTermHeader carries, on a write by leader-only work, the Raft term in which that work
// began. The store refuses the write in any other term.
const LeaderTermHeader = "Barque-Leader-Term"

type leaderTermKey struct{}

// WithLeaderTerm makes every write done under the returned context valid only in this Raft term.
func WithLeaderTerm(ctx context.Context, term uint64) context.Context {
	return context.WithValue(ctx, leaderTermKey{}, term)
}

// LeaderTerm returns the term that fences writes under this context, 0 when none does.
func LeaderTerm(ctx context.Context) uint64 {
	term, _ := ctx.Value(leaderTermKey{}).(uint64)
	return term
}

// WithLeaderTermHeader puts the term of a request's LeaderTermHeader into its context. Anybody may
// send the header: all it can do is to have one's own write refused.
func WithLeaderTermHeader(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		values := r.Header.Values(LeaderTermHeader)
		if len(values) == 0 {
			next.ServeHTTP(w, r)
			return
		}
		term, err := strconv.ParseUint(values[0], 10, 64)
		if err != nil || term == 0 || len(values) > 1 {
			http.Error(w, "header "+LeaderTermHeader+" must hold one Raft term, a positive decimal number",
				http.StatusBadRequest)
			return
		}
		next.ServeHTTP(w, r.WithContext(WithLeaderTerm(r.Context(), term)))
	})
}
