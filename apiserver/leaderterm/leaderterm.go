// Package leaderterm carries the Raft term of leader-only work with its writes, from the header of
// a request to the transaction.
package leaderterm

import (
	"context"
	"net/http"
	"strconv"
)

// Header carries, on a write by leader-only work, the Raft term in which that work began. The store
// refuses the write in any other term.
const Header = "Barque-Leader-Term"

type key struct{}

// With makes every write done under the returned context valid only in this Raft term.
func With(ctx context.Context, term uint64) context.Context {
	return context.WithValue(ctx, key{}, term)
}

// Of returns the term that fences writes under this context, 0 when none does.
func Of(ctx context.Context) uint64 {
	term, _ := ctx.Value(key{}).(uint64)
	return term
}

// FromHeader puts the term of a request's Header into its context. Anybody may send the header: all
// it can do is to have one's own write refused.
func FromHeader(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		values := r.Header.Values(Header)
		if len(values) == 0 {
			next.ServeHTTP(w, r)
			return
		}
		term, err := strconv.ParseUint(values[0], 10, 64)
		if err != nil || term == 0 || len(values) > 1 {
			http.Error(w, "header "+Header+" must hold one Raft term, a positive decimal number",
				http.StatusBadRequest)
			return
		}
		next.ServeHTTP(w, r.WithContext(With(r.Context(), term)))
	})
}
