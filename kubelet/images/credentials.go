package images

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/distribution/reference"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// dockerAuth is one entry of a Docker configuration file.
type dockerAuth struct {
	Username      string `json:"username"`
	Password      string `json:"password"`
	Auth          string `json:"auth"` // base64 of username:password
	IdentityToken string `json:"identitytoken"`
}

// credentials returns the credentials of the pod's imagePullSecrets for an image, the most specific
// first. A missing Secret is passed over: the image may be public.
func (p *Puller) credentials(ctx context.Context, pod *v1.Pod, image string) ([]*runtimeapi.AuthConfig, error) {
	type match struct {
		pattern string
		auth    dockerAuth
	}
	var matches []match
	for _, ref := range pod.Spec.ImagePullSecrets {
		secret, err := p.secrets.Secret(ctx, pod, ref.Name)
		if err != nil {
			p.log.Warn("cannot read an image pull secret", "pod", pod.Namespace+"/"+pod.Name, "secret", ref.Name,
				"err", err)
			continue
		}
		auths, err := parseAuths(secret)
		if err != nil {
			return nil, fmt.Errorf("image pull secret %q: %w", ref.Name, err)
		}
		for pattern, auth := range auths {
			if patternMatches(pattern, image) {
				matches = append(matches, match{pattern, auth})
			}
		}
	}
	slices.SortStableFunc(matches, func(a, b match) int { return cmp.Compare(len(b.pattern), len(a.pattern)) })
	var list []*runtimeapi.AuthConfig
	for _, m := range matches {
		list = append(list, &runtimeapi.AuthConfig{
			Username: m.auth.Username, Password: m.auth.Password, IdentityToken: m.auth.IdentityToken,
		})
	}
	return list, nil
}

func parseAuths(secret *v1.Secret) (map[string]dockerAuth, error) {
	auths := map[string]dockerAuth{}
	switch {
	case secret.Data[v1.DockerConfigJsonKey] != nil:
		file := struct {
			Auths map[string]dockerAuth `json:"auths"`
		}{auths}
		if err := json.Unmarshal(secret.Data[v1.DockerConfigJsonKey], &file); err != nil {
			return nil, err
		}
		auths = file.Auths
	case secret.Data[v1.DockerConfigKey] != nil:
		if err := json.Unmarshal(secret.Data[v1.DockerConfigKey], &auths); err != nil {
			return nil, err
		}
	}
	for pattern, auth := range auths {
		if auth.Auth == "" || auth.Username != "" {
			continue
		}
		raw, err := base64.StdEncoding.DecodeString(auth.Auth)
		if err != nil {
			return nil, fmt.Errorf("credentials for %q: %w", pattern, err)
		}
		auth.Username, auth.Password, _ = strings.Cut(string(raw), ":")
		auths[pattern] = auth
	}
	return auths, nil
}

// patternMatches reports whether credentials kept under pattern (a registry, optionally with a
// path, a port and * for one label of the host name) are for an image.
func patternMatches(pattern, image string) bool {
	named, err := reference.ParseDockerRef(image)
	if err != nil {
		return false
	}
	host, repository := reference.Domain(named), reference.Path(named)
	pattern = strings.TrimPrefix(strings.TrimPrefix(pattern, "https://"), "http://")
	wantHost, wantPath, _ := strings.Cut(strings.TrimSuffix(pattern, "/"), "/")
	if wantHost == "index.docker.io" || wantHost == "registry-1.docker.io" {
		wantHost = "docker.io"
	}
	if wantPath == "v1" || wantPath == "v2" {
		wantPath = "" // how clients have written the whole registry
	}
	wantLabels, labels := strings.Split(wantHost, "."), strings.Split(host, ".")
	if len(wantLabels) != len(labels) {
		return false
	}
	for i := range labels {
		if ok, err := path.Match(wantLabels[i], labels[i]); err != nil || !ok {
			return false
		}
	}
	return wantPath == "" || repository == wantPath || strings.HasPrefix(repository, wantPath+"/")
}
