package adminapi

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/barque/barque/membership/join"
)

// RelayParameter names the server for the answer to a request. Any server relays the request,
// because an operator's machine may reach one server only.
const RelayParameter = "on"

// relayedHeader marks a request that a server has passed on. It is not passed on again: an address
// may be another server's by now, or that of the server itself.
const relayedHeader = "Barque-Relayed-By"

// relayTimeout bounds how long another server is waited for.
const relayTimeout = 15 * time.Second

// Relay passes requests on to other servers, with this server's identity. The caller must have
// checked the user's permissions.
type Relay struct {
	self    string
	servers func() []join.Server
	client  *http.Client
}

// NewRelay calls the servers with the configuration of TLS given. While earlier is true, it may use
// that of an administrator, see callers.
func NewRelay(
	self string, servers func() []join.Server, config, admin *tls.Config, earlier func() bool, logger *slog.Logger,
) *Relay {
	transport := func(config *tls.Config) http.RoundTripper {
		return &http.Transport{
			TLSClientConfig: config, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 1, IdleConnTimeout: 10 * time.Second,
			TLSHandshakeTimeout: 5 * time.Second,
		}
	}
	return &Relay{self: self, servers: servers,
		client: &http.Client{Timeout: relayTimeout,
			Transport: callers{transport(config), transport(admin), earlier, logger}}}
}

// Pass relays a request that names another server, and calls next for all other requests.
func (r *Relay) Pass(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, request *http.Request) {
		name := request.URL.Query().Get(RelayParameter)
		if name == "" || name == r.self {
			next(w, request)
			return
		}
		if by := request.Header.Get(relayedHeader); by != "" {
			http.Error(w, fmt.Sprintf("%s has taken %s for %s", by, r.self, name), http.StatusMisdirectedRequest)
			return
		}
		response, err := r.ask(request.Context(), name, request.Method, request.URL.Path, request.URL.RawQuery)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer response.Body.Close()
		w.Header().Set("Content-Type", response.Header.Get("Content-Type"))
		w.WriteHeader(response.StatusCode)
		if _, err := io.Copy(w, response.Body); err != nil {
			panic(http.ErrAbortHandler) // so that the client sees that it is cut
		}
	}
}

// ask sends a request to the server of that name. It does not go further than that.
func (r *Relay) ask(ctx context.Context, name, method, path, query string) (*http.Response, error) {
	servers := r.servers()
	i := slices.IndexFunc(servers, func(s join.Server) bool { return s.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("%s knows no server named %q", r.self, name)
	}
	request, err := http.NewRequestWithContext(ctx, method, "https://"+servers[i].API.String()+path, nil)
	if err != nil {
		return nil, err
	}
	request.URL.RawQuery = query
	values := request.URL.Query()
	values.Set(RelayParameter, name) // it is for that server, which does not pass it on
	request.URL.RawQuery = values.Encode()
	request.Header.Set(relayedHeader, r.self)
	response, err := r.client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("%s cannot ask server %s: %w", r.self, name, err)
	}
	return response, nil
}

// Each asks all other servers at once, and calls take with each answer, one at a time.
func (r *Relay) Each(
	ctx context.Context, method, path string, take func(name string, response *http.Response, err error),
) {
	var mu sync.Mutex
	var asking sync.WaitGroup
	for _, s := range r.servers() {
		if s.Name == r.self {
			continue
		}
		asking.Go(func() {
			response, err := r.ask(ctx, s.Name, method, path, "")
			mu.Lock()
			defer mu.Unlock()
			take(s.Name, response, err)
			if err == nil {
				response.Body.Close()
			}
		})
	}
	asking.Wait()
}
