"""Pure codecs of TiDB row data and schema JSON: values in, values out."""
