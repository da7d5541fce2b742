package remote

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"k8s.io/client-go/rest"

	"github.com/barque/barque/adminapi"
	"github.com/barque/barque/internal/exitcode"
	"github.com/barque/barque/membership/credentials"
)

// Certs asks about the certificates of the cluster, renews them, and exchanges its CA.
type Certs struct {
	// Config is called for each request, because servers renew the kubeconfigs on their disks.
	Config func() (*rest.Config, error)
}

func (c Certs) ask(ctx context.Context, method, path string, params map[string]string, body, out any) error {
	config, err := c.Config()
	if err != nil {
		return err
	}
	return certificates(ctx, config, method, path, params, body, out)
}

// All returns all certificates of the cluster.
func (c Certs) All(ctx context.Context) (*adminapi.ClusterCertificates, error) {
	all := new(adminapi.ClusterCertificates)
	return all, c.ask(ctx, http.MethodGet, adminapi.CertificatesPath, nil, nil, all)
}

// Renewals are called with the result for each server.
type Renewals struct {
	// Renewed has the reason why the server has kept its key for other servers; empty if it has a
	// new one.
	Renewed func(server, keptKey string)
	Failed  func(server string, err error)
}

// Renew makes a server renew its certificates. Without a name all servers do so, one after the
// other. A failure does not stop the others.
func (c Certs) Renew(ctx context.Context, server string, told Renewals) error {
	all, err := c.All(ctx)
	if err != nil {
		return err
	}
	var renewed, failed []string
	found, lost := false, false
	for _, n := range all.Nodes {
		if server != "" && n.Node != server || server == "" && n.Role != "server" {
			continue
		}
		found = true
		if n.Role != "server" {
			return &exitcode.Error{Code: exitcode.Usage,
				Err: fmt.Errorf(
					"%s is an agent: it gets new certificates from the servers by itself, in time and after an exchange of the CA", n.Node)}
		}
		var is credentials.NodeCertificates
		err := c.ask(ctx, http.MethodPost, adminapi.CertificatesPath, map[string]string{"of": n.Node}, nil, &is)
		if ctx.Err() != nil {
			return &exitcode.Error{Code: exitcode.Unfinished,
				Err: fmt.Errorf(
					"interrupted: %s; whether %s has, `barque cert show` tells. Renewing again does no harm",
					haveNew(renewed), n.Node)}
		}
		if err != nil {
			told.Failed(n.Node, err)
			failed, lost = append(failed, n.Node), lost || outcomeLost(err)
			continue
		}
		renewed = append(renewed, n.Node)
		told.Renewed(n.Node, is.KeptKey)
	}
	switch {
	case !found:
		return &exitcode.Error{Code: exitcode.Usage,
			Err: fmt.Errorf("there is no server %q; `barque cluster members` lists them", server)}
	case lost:
		return &exitcode.Error{Code: exitcode.Unfinished,
			Err: fmt.Errorf(
				"not all servers have confirmed new certificates: %s; `barque cert show` shows each. Renewing again does no harm", strings.Join(failed, ", "))}
	case len(failed) > 0:
		return fmt.Errorf("the certificates of %s were not renewed", strings.Join(failed, ", "))
	}
	return nil
}

func haveNew(servers []string) string {
	if len(servers) == 0 {
		return "no server is known to have new certificates"
	}
	return strings.Join(servers, ", ") + " have new certificates"
}
