package runtime

import (
	"context"
	"io"
	"net/http"
	"strconv"

	"k8s.io/client-go/rest"
)

// Fenced returns a client configuration for a term of leadership: every request carries the term,
// in the header of that name, and ends with lead, the term's context, also one that a library makes
// with a context which never ends. A leader that has just lost the others could otherwise neither
// stop nor begin another term until the store gave the request up, many seconds later.
func Fenced(lead context.Context, term uint64, header string, config *rest.Config) *rest.Config {
	out := rest.CopyConfig(config)
	out.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			endless := r.Context().Done() == nil
			ctx, cancel := context.WithCancelCause(r.Context())
			stop := context.AfterFunc(lead, func() { cancel(context.Cause(lead)) })
			end := func() { stop(); cancel(nil) }
			r = r.Clone(ctx) // a RoundTripper may not change the request
			r.Header.Set(header, strconv.FormatUint(term, 10))
			answer, err := next.RoundTrip(r)
			if err != nil {
				end()
				return nil, err
			}
			if endless {
				// client-go would wait so long for another try of such a request, and longer than
				// the term.
				answer.Header.Del("Retry-After")
			}
			answer.Body = &endingBody{answer.Body, end}
			return answer, nil
		})
	})
	return out
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// endingBody is an answer's body; with it the request ends. A connection for something else than
// HTTP (101) cannot be had so: no leader's work asks for one.
type endingBody struct {
	io.ReadCloser
	end func()
}

func (b *endingBody) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}
