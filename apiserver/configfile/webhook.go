package configfile

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	clientcmdlatest "k8s.io/client-go/tools/clientcmd/api/latest"
	clientcmdv1 "k8s.io/client-go/tools/clientcmd/api/v1"
)

// Webhook reads the kubeconfig of a webhook. An error begins with the path. The loader would take
// an empty file for that of the administrator, or of the pod that Barque runs in, and ignore a
// misspelled field, such as that of the CA.
func Webhook(path string) (*rest.Config, error) {
	data, err := Read(path)
	if err != nil {
		return nil, err
	}
	if err := leads(data, filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	client, err := webhook.LoadKubeconfig(path, nil)
	if err == nil {
		err = usable(client)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %s", path, strings.TrimPrefix(err.Error(), "invalid configuration: "))
	}
	return client, nil
}

// kubeconfig is the kind of a webhook's file.
var kubeconfig = Kind{Name: "Config", APIVersions: []string{"v1"}, Optional: true}

var strictKubeconfig = json.NewSerializerWithOptions(json.DefaultMetaFactory, clientcmdlatest.Scheme,
	clientcmdlatest.Scheme,
	json.SerializerOptions{Yaml: true, Strict: true})

// leads checks that a kubeconfig in the directory has known fields only, and leads from its current
// context to a server, by files that are there.
func leads(data []byte, dir string) error {
	nothing := fmt.Errorf("%w: want a kubeconfig that leads to the webhook", errEmpty)
	if err := kubeconfig.Check(data); err != nil {
		if errors.Is(err, errEmpty) {
			return nothing
		}
		return err
	}
	kind := clientcmdv1.SchemeGroupVersion.WithKind(kubeconfig.Name)
	if _, _, err := strictKubeconfig.Decode(data, &kind, &clientcmdv1.Config{}); err != nil {
		return Plain(err)
	}
	config, err := clientcmd.Load(data)
	if err != nil {
		return Plain(err)
	}
	if clientcmdapi.IsConfigEmpty(config) {
		return nothing
	}
	name := config.CurrentContext
	if name == "" {
		return fmt.Errorf("it has no current-context: want the name of one of its contexts (%s)",
			namesOf(config.Contexts))
	}
	in := config.Contexts[name]
	if in == nil {
		return fmt.Errorf("current-context: there is no context %q: want one of its contexts (%s)", name,
			namesOf(config.Contexts))
	}
	cluster := config.Clusters[in.Cluster]
	switch {
	case cluster == nil:
		return fmt.Errorf("the context %q: there is no cluster %q: want one of its clusters (%s)", name, in.Cluster,
			namesOf(config.Clusters))
	case cluster.Server == "":
		return fmt.Errorf("the cluster %q has no server: want the URL of the webhook", in.Cluster)
	case in.AuthInfo != "" && config.AuthInfos[in.AuthInfo] == nil:
		return fmt.Errorf("the context %q: there is no user %q: want one of its users (%s)", name, in.AuthInfo,
			namesOf(config.AuthInfos))
	}
	files := map[string]string{}
	if len(cluster.CertificateAuthorityData) == 0 {
		files["certificate-authority"] = cluster.CertificateAuthority
	}
	if user := config.AuthInfos[in.AuthInfo]; user != nil {
		if len(user.ClientCertificateData) == 0 {
			files["client-certificate"] = user.ClientCertificate
		}
		if len(user.ClientKeyData) == 0 {
			files["client-key"] = user.ClientKey
		}
	}
	for _, field := range slices.Sorted(maps.Keys(files)) {
		path := files[field]
		if path == "" {
			continue
		}
		if !filepath.IsAbs(path) {
			path = filepath.Join(dir, path)
		}
		if _, err := Read(path); err != nil {
			return fmt.Errorf("%s %w", field, err)
		}
	}
	return nil
}

func namesOf[V any](of map[string]V) string {
	if len(of) == 0 {
		return "there is none"
	}
	return strings.Join(slices.Sorted(maps.Keys(of)), ", ")
}

// usable checks the URL and the certificates. A client would find their faults only with its first
// request.
func usable(config *rest.Config) error {
	if _, _, err := rest.DefaultServerUrlFor(config); err != nil {
		return fmt.Errorf("server: want the URL of the webhook, such as https://HOST/PATH: %w", err)
	}
	if _, err := rest.TLSConfigFor(config); err != nil {
		return fmt.Errorf("its certificates: want PEM: %w", err)
	}
	return nil
}
