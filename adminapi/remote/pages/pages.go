// Package pages asks a server for links to the page at /ui, and for the sessions of it, as
// `barque ui` does.
package pages

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"k8s.io/client-go/rest"

	"github.com/barque/barque/adminapi/page"
	"github.com/barque/barque/adminapi/remote"
	"github.com/barque/barque/internal/pagelogin"
)

// ErrNoCertificate is returned for a kubeconfig without a client certificate.
var ErrNoCertificate = errors.New(
	"this kubeconfig has no client certificate, for which a link to the page would stand: open the page and log in with the kubeconfig's token there")

// Link makes a link to the page for the user of the configuration.
func Link(ctx context.Context, config *rest.Config) (page.Link, error) {
	var link page.Link
	if len(config.CertData) == 0 && config.CertFile == "" {
		return link, ErrNoCertificate
	}
	return link, ask(ctx, config, http.MethodPost, pagelogin.LinkPath, &link)
}

// URL returns the URL of a link at a server, https://HOST:PORT. The secret is in the fragment,
// which browsers send to nobody.
func URL(server string, link page.Link) string {
	return strings.TrimSuffix(server, "/") + page.Prefix + "/#" + link.Token
}

// Sessions returns the open sessions.
func Sessions(ctx context.Context, config *rest.Config) (all []page.Session, err error) {
	return all, ask(ctx, config, http.MethodGet, pagelogin.SessionsPath, &all)
}

// End ends the session whose ID begins so, or all of a user, and returns them.
func End(ctx context.Context, config *rest.Config, id, user string) (ended []page.Session, err error) {
	query := url.Values{}
	if id != "" {
		query.Set("id", id)
	}
	if user != "" {
		query.Set("user", user)
	}
	return ended, ask(ctx, config, http.MethodDelete, pagelogin.SessionsPath+"?"+query.Encode(), &ended)
}

func ask(ctx context.Context, config *rest.Config, method, path string, into any) error {
	return remote.Ask(ctx, config, "the page", func(ctx context.Context) error {
		err := remote.CallJSON(ctx, config, method, config.Host, path, http.Header{page.OwnHeader: {"1"}}, into)
		var refused *remote.RefusalError
		if errors.As(err, &refused) && refused.Status == http.StatusNotFound {
			return fmt.Errorf("the server %s is of an earlier version, which has no page: %w", config.Host, err)
		}
		return err
	})
}
