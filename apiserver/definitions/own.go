package definitions

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/yaml"
)

// Edition is the annotation of the cluster's own CustomResourceDefinitions with the number of their
// edition. Servers of several versions agree by it on the newest. A user who takes it away keeps
// the definition as it is.
const Edition = "barque.io/definition-edition"

// Ensure makes the cluster's own CustomResourceDefinitions, and replaces those of an earlier
// edition.
func Ensure(ctx context.Context, client rest.Interface, texts [][]byte) error {
	var errs []error
	for _, text := range texts {
		var want apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(text, &want); err != nil {
			errs = append(errs, fmt.Errorf("a CustomResourceDefinition of the cluster: %w", err))
			continue
		}
		// Controllers write the status of a new definition just when the next edition comes.
		if err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			return ensure(ctx, client, want.DeepCopy())
		}); err != nil {
			errs = append(errs, fmt.Errorf("CustomResourceDefinition %s: %w", want.Name, err))
		}
	}
	return errors.Join(errs...)
}

func ensure(ctx context.Context, client rest.Interface, want *apiextensionsv1.CustomResourceDefinition) error {
	const path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	var have apiextensionsv1.CustomResourceDefinition
	raw, err := client.Get().AbsPath(path, want.Name).SetHeader("Accept", "application/json").DoRaw(ctx)
	if err == nil {
		err = json.Unmarshal(raw, &have)
	}
	request := client.Post().AbsPath(path)
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return err
	case !earlier(have.Annotations[Edition], want.Annotations[Edition]):
		return nil
	default:
		want.ResourceVersion = have.ResourceVersion
		request = client.Put().AbsPath(path, want.Name)
	}
	body, err := json.Marshal(want)
	if err != nil {
		return err
	}
	err = request.SetHeader("Content-Type", "application/json").Body(body).Do(ctx).Error()
	if apierrors.IsAlreadyExists(err) {
		return nil // another server, or a user, was faster: the next look decides
	}
	return err
}

// earlier reports whether an edition is older than another one. One without a number is a user's.
func earlier(have, want string) bool {
	h, err := strconv.Atoi(have)
	w, wantErr := strconv.Atoi(want)
	return err == nil && wantErr == nil && h < w
}
