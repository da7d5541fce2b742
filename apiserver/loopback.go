package apiserver

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"strings"
	"sync"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapiserver "k8s.io/apiserver/pkg/server"
	restclient "k8s.io/client-go/rest"

	"github.com/barque/barque/apiserver/inprocess"
)

// loopback lets the parts of this process be clients of its own server, without a network. Each
// identity gets a random token that only this process knows.
type loopback struct {
	host      string
	ca        []byte
	transport *inprocess.Transport

	mu         sync.RWMutex
	tokens     map[string]user.Info
	identities map[string]string // tokens by name and groups
}

func newLoopback(address net.Addr, ca []byte) (*loopback, error) {
	host, port, err := net.SplitHostPort(address.String())
	if err != nil {
		return nil, fmt.Errorf("address of the API listener: %w", err)
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
		if ip.To4() == nil {
			host = "::1"
		}
	}
	return &loopback{
		host: "https://" + net.JoinHostPort(host, port), ca: ca, transport: inprocess.New(),
		tokens: map[string]user.Info{}, identities: map[string]string{},
	}, nil
}

// config returns a client configuration for the identity. Requests are not rate limited: the
// server limits all clients fairly, and these are its own.
func (l *loopback) config(name string, groups ...string) *restclient.Config {
	return &restclient.Config{
		Host:        l.host,
		BearerToken: l.token(name, groups),
		UserAgent:   "barque/" + name,
		QPS:         -1,
		ContentConfig: restclient.ContentConfig{
			ContentType:        "application/vnd.kubernetes.protobuf",
			AcceptContentTypes: "application/vnd.kubernetes.protobuf,application/json",
		},
		Transport: l.transport,
	}
}

// overTLS is config for libraries that look for the address and the CA in it.
func (l *loopback) overTLS(name string, groups ...string) *restclient.Config {
	c := l.config(name, groups...)
	c.Transport = nil
	c.TLSClientConfig = restclient.TLSClientConfig{CAData: l.ca,
		ServerName: genericapiserver.LoopbackClientServerNameOverride}
	return c
}

// token returns the token of an identity.
func (l *loopback) token(name string, groups []string) string {
	identity := strings.Join(append([]string{name}, groups...), "\x00")
	l.mu.Lock()
	defer l.mu.Unlock()
	token, ok := l.identities[identity]
	if !ok {
		token = rand.Text()
		l.identities[identity] = token
		l.tokens[token] = &user.DefaultInfo{Name: name, Groups: append([]string{user.AllAuthenticated}, groups...)}
	}
	return token
}

// users returns the users of the tokens.
func (l *loopback) users() (all []user.Info) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	for _, u := range l.tokens {
		all = append(all, u)
	}
	return all
}

// AuthenticateToken implements authenticator.Token.
func (l *loopback) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	l.mu.RLock()
	u, ok := l.tokens[token]
	l.mu.RUnlock()
	if !ok {
		return nil, false, nil
	}
	audiences, _ := authenticator.AudiencesFrom(ctx)
	return &authenticator.Response{User: u, Audiences: audiences}, true, nil
}
