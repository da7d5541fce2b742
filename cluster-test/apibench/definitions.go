package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/cluster-test/kubeapiserver"
	"github.com/barque/barque/cluster-test/sides"
)

const (
	starts   = 3
	perGroup = 10 // definitions
	fields   = 60 // of a definition's schema
)

// side is one whose servers are restarted and weighed.
type side struct{ *sides.Side }

// definitions measures memory and start-up time without and with CustomResourceDefinitions.
func definitions(ctx context.Context, o options, theirs, ours *sides.Side) error {
	fmt.Println("\n| definitions | servers | MiB of each when idle | start until ready, s |\n|---|---|---|---|")
	var without [2][]float64
	for _, n := range []int{0, o.definitions} {
		both := []side{{theirs}, {ours}}
		if n > 0 {
			var all []*apiextensionsv1.CustomResourceDefinition
			for i := range n {
				all = append(all, definition(i))
			}
			for _, s := range both {
				progress("%d definitions on %s", n, s.Name)
				if err := define(ctx, s.Side, all...); err != nil {
					return fmt.Errorf("%s: %w", s.Name, err)
				}
			}
		}
		if err := leave(ctx, o.rest); err != nil {
			return err
		}
		for i, s := range both {
			memory, err := s.memory()
			if err != nil {
				return err
			}
			if n == 0 {
				without[i] = memory
			}
			took, err := s.restarts(ctx)
			if err != nil {
				return fmt.Errorf("restart a server of %s: %w", s.Name, err)
			}
			fmt.Printf("| %d | %s | %s | %s |\n", n, s.Name, listed(memory, "%.0f"), listed(took, "%.2f"))
			if n > 0 {
				var each []float64
				for j := range memory {
					each = append(each, (memory[j]-without[i][j])/float64(n))
				}
				fmt.Printf("| for each of %d | %s | %s | |\n", n, s.Name, listed(each, "%.2f"))
			}
		}
	}
	return nil
}

// memory returns the anonymous memory of each server, with its etcd, in MiB.
func (s side) memory() ([]float64, error) {
	var out []float64
	for _, e := range s.Servers {
		u, err := e.Use()
		if err != nil {
			return nil, err
		}
		out = append(out, u.Anonymous)
	}
	return out, nil
}

// restarts returns how long a server took until it was ready, in seconds and sorted.
func (s side) restarts(ctx context.Context) ([]float64, error) {
	var out []float64
	for range starts {
		took, err := s.RestartLast(ctx)
		if err != nil {
			return nil, err
		}
		out = append(out, took.Seconds())
	}
	slices.Sort(out)
	return out, nil
}

func listed(values []float64, format string) string {
	var out []string
	for _, v := range values {
		out = append(out, fmt.Sprintf(format, v))
	}
	return strings.Join(out, " / ")
}

// define makes definitions and waits until all are established.
func define(ctx context.Context, s *sides.Side, all ...*apiextensionsv1.CustomResourceDefinition) error {
	const path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	e := s.Servers[0]
	client := connection{e.Client(), e.URL}
	for _, d := range all {
		if _, err := client.write(ctx, http.MethodPost, path, inJSON, d); err != nil {
			return err
		}
	}
	return kubeapiserver.Retry(ctx, nil, func() error {
		res, err := client.send(ctx, http.MethodGet, path, inJSON.media, nil)
		if err != nil {
			return err
		}
		var list apiextensionsv1.CustomResourceDefinitionList
		if err := errors.Join(json.NewDecoder(res.Body).Decode(&list), res.Body.Close()); err != nil {
			return err
		}
		missing := len(all)
		for _, d := range list.Items {
			for _, c := range d.Status.Conditions {
				if c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue {
					missing--
				}
			}
		}
		if missing > 0 {
			return fmt.Errorf("%d definitions are not established", missing)
		}
		return nil
	})
}

// definition is one as operators have them: a schema of described fields, a rule, and a status.
func definition(i int) *apiextensionsv1.CustomResourceDefinition {
	group := fmt.Sprintf("g%d.apibench.example.com", i/perGroup)
	singular := fmt.Sprintf("thing%d", i)
	spec := apiextensionsv1.JSONSchemaProps{
		Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{},
		XValidations: apiextensionsv1.ValidationRules{
			{Rule: "!has(self.field1) || self.field1 != 'none'", Message: "field1 must not be none"}},
	}
	for f := range fields {
		spec.Properties[fmt.Sprintf("field%d", f)] = apiextensionsv1.JSONSchemaProps{
			Type:        "string",
			Description: fmt.Sprintf("Field %d says what this thing does when its time has come, and nothing else.", f),
		}
	}
	return namespaced(group, fmt.Sprintf("Thing%d", i), singular+"s", spec,
		apiextensionsv1.JSONSchemaProps{Type: "object"})
}

// namespaced defines a kind of namespaced objects with a status.
func namespaced(
	group, kind, plural string, spec, status apiextensionsv1.JSONSchemaProps,
) *apiextensionsv1.CustomResourceDefinition {
	return &apiextensionsv1.CustomResourceDefinition{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"},
		ObjectMeta: metav1.ObjectMeta{Name: plural + "." + group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Singular: strings.ToLower(kind),
				Kind: kind, ListKind: kind + "List"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Subresources: &apiextensionsv1.CustomResourceSubresources{
					Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type:       "object",
					Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": spec, "status": status},
				}},
			}},
		},
	}
}
