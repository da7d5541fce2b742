package main

import (
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

//go:embed objects
var objects embed.FS

// namespace is where objects that have one are made.
const namespace = "answers"

// kind is a kind, a valid object of it, and variants of that as merge patches.
type kind struct {
	name       string // as in kind:
	object     map[string]any
	variants   []map[string]any
	path       string // of the collection
	status     bool   // there is a status subresource
	namespaced bool
}

// request is one request, which both servers get.
type request struct {
	name   string
	method string
	path   string
	body   map[string]any
}

// clusterScoped are the kinds without a namespace; all others in objects/ have one.
var clusterScoped = []string{"Namespace", "Node", "PersistentVolume", "ClusterRole", "ClusterRoleBinding", "PriorityClass", "IngressClass",
	"ServiceCIDR", "IPAddress", "RuntimeClass", "StorageClass", "CSIDriver", "CSINode", "VolumeAttachment", "VolumeAttributesClass",
	"CertificateSigningRequest", "FlowSchema", "PriorityLevelConfiguration", "ValidatingWebhookConfiguration", "MutatingWebhookConfiguration",
	"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}

// withStatus are the kinds whose status is written apart.
var withStatus = []string{"Pod", "Service", "Node", "Namespace", "Deployment", "ReplicaSet", "PersistentVolume", "PersistentVolumeClaim",
	"ResourceQuota", "Ingress", "PodDisruptionBudget", "ServiceCIDR", "VolumeAttachment", "CertificateSigningRequest", "FlowSchema",
	"PriorityLevelConfiguration", "ValidatingAdmissionPolicy"}

func readKinds() ([]*kind, error) {
	variants := map[string][]map[string]any{}
	data, err := objects.ReadFile("objects/variants.yaml")
	if err != nil {
		return nil, err
	}
	if err := yaml.UnmarshalStrict(data, &variants); err != nil {
		return nil, fmt.Errorf("variants.yaml: %w", err)
	}
	var kinds []*kind
	err = fs.WalkDir(objects, "objects", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || strings.HasSuffix(path, "variants.yaml") {
			return err
		}
		data, err := objects.ReadFile(path)
		if err != nil {
			return err
		}
		for _, doc := range strings.Split(string(data), "\n---\n") {
			k := &kind{}
			if err := yaml.Unmarshal([]byte(doc), &k.object); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			k.complete()
			k.variants = variants[k.name]
			delete(variants, k.name)
			kinds = append(kinds, k)
		}
		return nil
	})
	if err == nil && len(variants) > 0 {
		err = fmt.Errorf("variants of kinds without an object: %v", slices.Sorted(maps.Keys(variants)))
	}
	return kinds, err
}

func (k *kind) complete() {
	u := unstructured.Unstructured{Object: k.object}
	k.name = u.GetKind()
	k.namespaced, k.status = !slices.Contains(clusterScoped, k.name), slices.Contains(withStatus, k.name)
	gvk := u.GroupVersionKind()
	plural, _ := meta.UnsafeGuessKindToResource(gvk)
	if k.name == "Endpoints" {
		plural.Resource = "endpoints"
	}
	k.path = apiPath(gvk.GroupVersion())
	if k.namespaced {
		u.SetNamespace(k.namespace())
		k.path += "/namespaces/" + k.namespace()
	}
	k.path += "/" + plural.Resource
}

// namespace has all kinds together, but for those that would change what others are answered.
func (k *kind) namespace() string {
	if k.name == "LimitRange" || k.name == "ResourceQuota" {
		return namespace + "-limited"
	}
	return namespace
}

func apiPath(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "/api/" + gv.Version
	}
	return "/apis/" + gv.String()
}

// setUp makes what the requests of the kind need: a namespace, its account, and the object.
func (k *kind) setUp() []request {
	simple := func(apiVersion, kind, name, path string) request {
		return request{"make " + kind, "POST", path, map[string]any{"apiVersion": apiVersion, "kind": kind, "metadata": map[string]any{"name": name}}}
	}
	return []request{
		simple("v1", "Namespace", k.namespace(), "/api/v1/namespaces"),
		simple("v1", "ServiceAccount", "default", "/api/v1/namespaces/"+k.namespace()+"/serviceaccounts"),
		{"make " + k.name, "POST", k.path, k.object},
	}
}

// requests are the creations, updates and updates of the status of the kind's mutations.
func (k *kind) requests() []request {
	const dry = "?dryRun=All"
	name := k.object["metadata"].(map[string]any)["name"].(string)
	var out []request
	for _, m := range k.mutations() {
		created := clone(m.object)
		if meta, ok := created["metadata"].(map[string]any); ok && meta["name"] == name {
			meta["name"] = name + "-new"
		}
		out = append(out, request{k.name + " create " + m.name, "POST", k.path + dry, created})
		if meta, ok := m.object["metadata"].(map[string]any); !ok || meta["name"] != name {
			continue // it would be an update of another object
		}
		out = append(out, request{k.name + " update " + m.name, "PUT", k.path + "/" + name + dry, m.object})
		if k.status && (strings.HasPrefix(m.name, "status") || m.name == "nothing") {
			out = append(out, request{k.name + " status " + m.name, "PUT", k.path + "/" + name + "/status" + dry, m.object})
		}
	}
	return out
}

func clone(object map[string]any) map[string]any {
	data, err := json.Marshal(object)
	if err != nil {
		panic(err) // it came from YAML
	}
	var out map[string]any
	if err := json.Unmarshal(data, &out); err != nil {
		panic(err)
	}
	return out
}
