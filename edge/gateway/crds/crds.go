// Package crds carries the definitions of those kinds of the Gateway API that the gateway serves,
// as `make gateway-crds` takes them from upstream's module, and installs them.
//
// A binary that was built without `make` has none, and leaves the cluster's as they are.
package crds

import (
	"bytes"
	"compress/gzip"
	"context"
	"embed"
	"fmt"
	"io"
	"io/fs"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	clientv1 "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"sigs.k8s.io/gateway-api/pkg/consts"
	"sigs.k8s.io/yaml"
)

//go:embed files
var embedded embed.FS

// Installed marks definitions that the cluster has installed, and may replace by newer ones.
const Installed = "barque.io/installed"

// All returns the definitions in the binary.
func All() ([]*apiextensionsv1.CustomResourceDefinition, error) {
	files, err := fs.Glob(embedded, "files/*.yaml.gz")
	if err != nil {
		return nil, err
	}
	var all []*apiextensionsv1.CustomResourceDefinition
	for _, name := range files {
		content, err := embedded.ReadFile(name)
		if err != nil {
			return nil, err
		}
		unzip, err := gzip.NewReader(bytes.NewReader(content))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		text, err := io.ReadAll(unzip)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.Unmarshal(text, crd); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		crd.Status = apiextensionsv1.CustomResourceDefinitionStatus{}
		all = append(all, crd)
	}
	return all, nil
}

// Install creates the definitions that are missing, and replaces those that an earlier version of
// Barque has installed. Definitions of users stay, older ones too: another controller may need
// them.
func Install(ctx context.Context, client clientv1.CustomResourceDefinitionInterface) error {
	all, err := All()
	if err != nil {
		return err
	}
	for _, crd := range all {
		have, err := client.Get(ctx, crd.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			crd.Annotations[Installed] = "true"
			if _, err := client.Create(ctx, crd, metav1.CreateOptions{}); err != nil &&
				!apierrors.IsAlreadyExists(err) {
				return fmt.Errorf("create the definition %s: %w", crd.Name, err)
			}
		case err != nil:
			return fmt.Errorf("read the definition %s: %w", crd.Name, err)
		case Replaces(have, crd):
			next := have.DeepCopy()
			next.Spec = crd.Spec
			for k, v := range crd.Annotations {
				next.Annotations[k] = v
			}
			if _, err := client.Update(ctx, next, metav1.UpdateOptions{}); err != nil {
				return fmt.Errorf("update the definition %s: %w", crd.Name, err)
			}
		}
	}
	return nil
}

// Replaces reports whether a definition of the cluster gives way to one in the binary.
func Replaces(have, ours *apiextensionsv1.CustomResourceDefinition) bool {
	if have.Annotations[Installed] != "true" {
		return false
	}
	old, err := version.ParseSemantic(have.Annotations[consts.BundleVersionAnnotation])
	if err != nil {
		return false
	}
	now, err := version.ParseSemantic(ours.Annotations[consts.BundleVersionAnnotation])
	return err == nil && old.LessThan(now)
}
