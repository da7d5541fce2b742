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

const (
	variantsFile = "objects/variants.yaml"
	othersFile   = "objects/others.yaml"
)

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
	// sent is the request that replaces creations and updates: see other.
	sent *other
}

// other is a request that goes elsewhere than to the collection of a kind.
type other struct {
	Name    string
	Method  string
	Path    string // without the namespace
	Cluster bool   // the path has no namespace
	Object  map[string]any
}

// request is one request, which both servers get.
type request struct {
	name   string
	method string
	path   string
	body   map[string]any // none if nil
	accept string         // JSON if empty
}

// asTable asks for a table.
const asTable = "application/json;as=Table;v=v1;g=meta.k8s.io"

// clusterScoped are the kinds without a namespace; all others in objects/ have one.
var clusterScoped = []string{"Namespace", "Node", "PersistentVolume", "ClusterRole", "ClusterRoleBinding",
	"PriorityClass", "IngressClass",
	"ServiceCIDR", "IPAddress", "RuntimeClass", "StorageClass", "CSIDriver", "CSINode", "VolumeAttachment",
	"VolumeAttributesClass",
	"CertificateSigningRequest", "ClusterTrustBundle", "FlowSchema", "PriorityLevelConfiguration",
	"ValidatingWebhookConfiguration",
	"MutatingWebhookConfiguration", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
	"MutatingAdmissionPolicy",
	"MutatingAdmissionPolicyBinding", "DeviceClass", "DeviceTaintRule", "ResourceSlice", "StorageVersionMigration",
	"CustomResourceDefinition", "APIService"}

// withStatus are the kinds whose status is written apart.
var withStatus = []string{"Pod", "Service", "Node", "Namespace", "Deployment", "ReplicaSet", "ReplicationController",
	"DaemonSet", "StatefulSet",
	"Job", "CronJob", "HorizontalPodAutoscaler", "PersistentVolume", "PersistentVolumeClaim", "ResourceQuota",
	"Ingress", "PodDisruptionBudget",
	"ServiceCIDR", "VolumeAttachment", "CSINode", "CertificateSigningRequest", "PodCertificateRequest", "FlowSchema",
	"PriorityLevelConfiguration",
	"ValidatingAdmissionPolicy", "ResourceClaim", "DeviceTaintRule", "StorageVersionMigration",
	"CustomResourceDefinition", "APIService"}

// namedByRest are the kinds whose names follow from their other fields: no second one can be made.
var namedByRest = []string{"IPAddress", "CustomResourceDefinition", "APIService"}

func readKinds() ([]*kind, error) {
	variants := map[string][]map[string]any{}
	if err := readObjects(variantsFile, &variants); err != nil {
		return nil, err
	}
	var kinds []*kind
	err := fs.WalkDir(objects, "objects", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || path == variantsFile || path == othersFile {
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
	if err != nil {
		return nil, err
	}
	var others []*other
	if err := readObjects(othersFile, &others); err != nil {
		return nil, err
	}
	for _, o := range others {
		kinds = append(kinds, o.kind())
	}
	return kinds, nil
}

// readObjects reads a file of objects/ that has no objects of kinds.
func readObjects(path string, into any) error {
	data, err := objects.ReadFile(path)
	if err != nil {
		return err
	}
	if err := yaml.UnmarshalStrict(data, into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// kind makes a kind of it, whose mutations are sent. It comes after the kinds of the objects that
// it concerns.
func (o *other) kind() *kind {
	k := &kind{name: o.Name, object: o.Object, sent: o, path: "/" + o.Path}
	if !o.Cluster {
		version := 2 // as in api/v1/pods
		if strings.HasPrefix(o.Path, "apis/") {
			version = 3
		}
		parts := strings.Split(o.Path, "/")
		k.path = "/" + strings.Join(slices.Insert(parts, version, "namespaces", namespace), "/")
	}
	return k
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

// namespace has all kinds together, but for those that would change the answers to others.
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

// setUp makes the objects that the requests of the kind need: a namespace, its account, and
// the object.
func (k *kind) setUp() []request {
	if k.sent != nil {
		return nil
	}
	simple := func(apiVersion, kind, name, path string) request {
		return request{name: "make " + kind, method: "POST", path: path,
			body: map[string]any{"apiVersion": apiVersion, "kind": kind, "metadata": map[string]any{"name": name}}}
	}
	return []request{
		simple("v1", "Namespace", k.namespace(), "/api/v1/namespaces"),
		simple("v1", "ServiceAccount", "default", "/api/v1/namespaces/"+k.namespace()+"/serviceaccounts"),
		{name: "make " + k.name, method: "POST", path: k.path, body: k.object},
	}
}

// requests are the creations, updates and updates of the status of the kind's mutations, and one
// for the object as a table, as kubectl get has it.
func (k *kind) requests() []request {
	const dry = "?dryRun=All"
	var out []request
	if k.sent != nil {
		for _, m := range k.mutations() {
			out = append(out,
				request{name: k.name + " " + m.name, method: k.sent.Method, path: k.path + dry, body: m.object})
		}
		return out
	}
	name := k.object["metadata"].(map[string]any)["name"].(string)
	out = append(out, request{name: k.name + " table", method: "GET", path: k.path + "/" + name, accept: asTable})
	for _, m := range k.mutations() {
		created := clone(m.object)
		// A kind without a second object answers a valid one by a conflict, and refuses an invalid
		// one before that.
		if meta, ok := created["metadata"].(map[string]any); ok && meta["name"] == name &&
			!slices.Contains(namedByRest, k.name) {
			meta["name"] = name + "-new"
		}
		out = append(out,
			request{name: k.name + " create " + m.name, method: "POST", path: k.path + dry, body: created})
		if meta, ok := m.object["metadata"].(map[string]any); !ok || meta["name"] != name {
			continue // it would be an update of another object
		}
		out = append(out,
			request{name: k.name + " update " + m.name, method: "PUT", path: k.path + "/" + name + dry, body: m.object})
		if k.status && (strings.HasPrefix(m.name, "status") || m.name == "nothing") {
			out = append(out,
				request{name: k.name + " status " + m.name, method: "PUT", path: k.path + "/" + name + "/status" + dry,
					body: m.object})
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
