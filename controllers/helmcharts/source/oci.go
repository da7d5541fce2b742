package source

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/Masterminds/semver/v3"
	"helm.sh/helm/v4/pkg/registry"
	"oras.land/oras-go/v2/registry/remote/auth"
)

// noFile keeps Helm's client from files of the user that runs the server.
const noFile = "/nonexistent/barque-charts.json"

// pull fetches a chart from an OCI registry.
func (c *Chart) pull(client *http.Client) ([]byte, error) {
	at := strings.TrimPrefix(c.Chart, "oci://")
	if c.Repo != "" {
		at = strings.TrimSuffix(strings.TrimPrefix(c.Repo, "oci://"), "/") + "/" + at
	}
	logins, err := dockerLogins(c.DockerConfig)
	if err != nil {
		return nil, err
	}
	host, _, _ := strings.Cut(at, "/")
	options := []registry.ClientOption{
		registry.ClientOptCredentialsFile(noFile),
		registry.ClientOptAuthorizer(auth.Client{Client: client,
			Credential: func(_ context.Context, server string) (auth.Credential, error) {
				if login, ok := logins[server]; ok {
					return login, nil
				}
				if c.Username != "" && (c.PassCredentials || server == host) {
					return auth.Credential{Username: c.Username, Password: c.Password}, nil
				}
				return auth.EmptyCredential, nil
			}}),
	}
	if c.PlainHTTP {
		options = append(options, registry.ClientOptPlainHTTP())
	}
	remote, err := registry.NewClient(options...)
	if err != nil {
		return nil, fmt.Errorf("make a client of %s: %w", host, err)
	}
	ref, err := c.tagged(remote, at)
	if err != nil {
		return nil, err
	}
	result, err := remote.Pull(ref)
	if err != nil {
		return nil, fmt.Errorf("pull %s: %w", ref, err)
	}
	if result.Chart == nil || len(result.Chart.Data) == 0 {
		return nil, fmt.Errorf("%s is no chart", ref)
	}
	return result.Chart.Data, nil
}

// tagged returns a reference with a tag or a digest. A range of versions, and none, is looked up.
func (c *Chart) tagged(remote *registry.Client, at string) (string, error) {
	last := at[strings.LastIndex(at, "/")+1:]
	if strings.ContainsAny(last, ":@") {
		return at, nil
	}
	if _, err := semver.StrictNewVersion(strings.TrimPrefix(c.Version, "v")); err == nil {
		return at + ":" + strings.ReplaceAll(c.Version, "+", "_"), nil
	}
	want := c.Version
	if want == "" {
		want = "*"
	}
	within, err := semver.NewConstraint(want)
	if err != nil {
		return "", fmt.Errorf("version %q: %w", c.Version, err)
	}
	tags, err := remote.Tags(at) // the newest first
	if err != nil {
		return "", fmt.Errorf("list the versions of %s: %w", at, err)
	}
	for _, tag := range tags {
		if v, err := semver.NewVersion(tag); err == nil && within.Check(v) {
			return at + ":" + strings.ReplaceAll(tag, "+", "_"), nil
		}
	}
	return "", fmt.Errorf("%s has no version %s", at, want)
}

// dockerLogins reads the credentials of a Secret of type kubernetes.io/dockerconfigjson, by hosts.
func dockerLogins(config []byte) (map[string]auth.Credential, error) {
	if len(config) == 0 {
		return nil, nil
	}
	var file struct {
		Auths map[string]struct {
			Auth, Username, Password, IdentityToken, RegistryToken string
		}
	}
	if err := json.Unmarshal(config, &file); err != nil {
		return nil, errors.New("dockerRegistrySecret: .dockerconfigjson is no JSON object of this form")
	}
	out := map[string]auth.Credential{}
	for server, a := range file.Auths {
		host := strings.TrimPrefix(strings.TrimPrefix(server, "https://"), "http://")
		host, _, _ = strings.Cut(host, "/")
		if a.Auth != "" {
			plain, err := base64.StdEncoding.DecodeString(a.Auth)
			if err != nil {
				return nil, fmt.Errorf("dockerRegistrySecret: auth of %s is no base64", host)
			}
			a.Username, a.Password, _ = strings.Cut(string(plain), ":")
		}
		login := auth.Credential{Username: a.Username, Password: a.Password, RefreshToken: a.IdentityToken,
			AccessToken: a.RegistryToken}
		if host == "index.docker.io" {
			out["registry-1.docker.io"] = login
		}
		out[host] = login
	}
	return out, nil
}
