package devices

import (
	"encoding/json"
	"errors"
	"fmt"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	devicecel "k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/ptr"
)

// omitted stands for values that are too large for a message.
const omitted = "<value omitted>"

// validateSelectors checks selectors of devices. Expressions that are stored already are not
// compiled again.
func validateSelectors(list []resourcev1.DeviceSelector, stored bool, at *field.Path) field.ErrorList {
	return each(list, resourcev1.DeviceSelectorsMaxSize, at,
		func(s *resourcev1.DeviceSelector, at *field.Path) field.ErrorList {
			at = at.Child("cel")
			switch {
			case s.CEL == nil:
				return field.ErrorList{field.Required(at, "")}
			case stored:
				return nil
			}
			return validateExpression(s.CEL.Expression, at.Child("expression"))
		})
}

func validateExpression(expression string, at *field.Path) field.ErrorList {
	if len(expression) > resourcev1.CELSelectorExpressionMaxLength {
		return field.ErrorList{field.TooLong(at, "", resourcev1.CELSelectorExpressionMaxLength)}
	}
	compiler := devicecel.GetCompiler(devicecel.Features{EnableConsumableCapacity: true})
	result := compiler.CompileCELExpression(expression, devicecel.Options{EnvType: ptr.To(environment.NewExpressions)})
	if result.Error != nil {
		return field.ErrorList{expressionError(expression, result.Error, at)}
	}
	if result.MaxCost > resourcev1.CELSelectorExpressionMaxCost {
		return field.ErrorList{field.Forbidden(at, "too complex, exceeds cost limit")}
	}
	return nil
}

func expressionError(expression string, err error, at *field.Path) *field.Error {
	var of *cel.Error
	if errors.As(err, &of) {
		switch of.Type {
		case cel.ErrorTypeRequired:
			return field.Required(at, of.Detail)
		case cel.ErrorTypeInvalid:
			return field.Invalid(at, expression, of.Detail)
		}
	}
	return field.InternalError(at, err)
}

// validateConfiguration checks parameters for a driver. Those that are stored already may be larger
// than new ones.
func validateConfiguration(c *resourcev1.DeviceConfiguration, stored bool, at *field.Path) field.ErrorList {
	at = at.Child("opaque")
	if c.Opaque == nil {
		return field.ErrorList{field.Required(at, "")}
	}
	most := resourcev1.OpaqueParametersMaxLength
	if stored {
		most = unbounded
	}
	errs := driverName(c.Opaque.Driver, at.Child("driver"))
	return append(errs, validateRaw(c.Opaque.Parameters, most, at.Child("parameters"))...)
}

// validateRaw checks that raw data is a JSON object.
func validateRaw(data runtime.RawExtension, most int, at *field.Path) field.ErrorList {
	if len(data.Raw) == 0 {
		return field.ErrorList{field.Required(at, "")}
	}
	if most != unbounded && len(data.Raw) > most {
		return field.ErrorList{field.TooLong(at, "", most)}
	}
	var v any
	if err := json.Unmarshal(data.Raw, &v); err != nil {
		return field.ErrorList{field.Invalid(at, omitted, fmt.Sprintf("error parsing data as JSON: %v", err))}
	}
	if v == nil {
		return field.ErrorList{field.Required(at, "")}
	}
	if _, ok := v.(map[string]any); !ok {
		return field.ErrorList{field.Invalid(at, omitted, "must be a valid JSON object")}
	}
	return nil
}
