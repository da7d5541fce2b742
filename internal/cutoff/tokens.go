package cutoff

import (
	"context"
	"time"
)

const (
	// lookAgain is the pause between two looks at the tokens of requests. No change tells of the
	// end of a token: most are bound to a pod, and each pod's end would have to be compared.
	lookAgain = time.Minute
	// tokenPatience bounds how long one token takes. Without a quorum nothing can be looked up.
	tokenPatience = 5 * time.Second
)

// RunTokens ends the requests of tokens that count no more, until ctx ends.
func (q *Requests) RunTokens(ctx context.Context) {
	ticker := time.NewTicker(lookAgain)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			q.LookAtTokens(ctx)
		}
	}
}

// LookAtTokens judges each token once: the watches of a pod share theirs. A look ends before the
// next one is due. The order is random, so that no token keeps the same others waiting.
func (q *Requests) LookAtTokens(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lookAgain)
	defer cancel()
	of := map[string][]lasting{}
	for _, l := range q.all() {
		of[l.token] = append(of[l.token], l)
	}
	for token, requests := range of {
		if ctx.Err() != nil {
			return
		}
		if why := q.judgeToken(ctx, token); why != nil {
			for _, l := range requests {
				l.end(why)
			}
		}
	}
}

func (q *Requests) judgeToken(ctx context.Context, token string) error {
	ctx, cancel := context.WithTimeout(ctx, tokenPatience)
	defer cancel()
	return q.ended(ctx, token)
}
