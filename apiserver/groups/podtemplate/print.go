package podtemplate

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/apiserver/resource"
)

// Columns are the columns that kubectl get -o wide shows for every workload; Cells fills them.
func Columns() []metav1.TableColumnDefinition {
	return []metav1.TableColumnDefinition{
		resource.WideColumn("Containers", "string", "Names of each container in the template."),
		resource.WideColumn("Images", "string", "Images referenced by each container in the template."),
		resource.WideColumn("Selector", "string", "Label selector of the pods that belong to the object."),
	}
}

// Cells are the cells of Columns.
func Cells(spec *corev1.PodSpec, selector *metav1.LabelSelector) []any {
	var names, images []string
	for _, c := range spec.Containers {
		names = append(names, c.Name)
		images = append(images, c.Image)
	}
	return []any{strings.Join(names, ","), strings.Join(images, ","), metav1.FormatLabelSelector(selector)}
}
